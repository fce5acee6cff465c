"""Remedies in messages: every extra, option, command and file that one names exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from nnlo_opt.app.api.arguments import SearchArguments
from nnlo_opt.cli import tool
from tests.helpers.sources import ROOT, SOURCES, tree_of

REPOSITORY = ROOT.parent
SETUP = (REPOSITORY / "setup.py").read_text()
OPTIONS = {flag for command in tool.COMMANDS.values() for option in command.options for flag in option.flags}
#: options that are in no table, one that is shortened, and options of other programs
MORE = {"--help", "--help-all", "--version", "--early", "--mpi"}
#: of NNLO, taken without effect; of mpirun, TensorBoard and MLflow
MORE |= {"--tf", "--profile", "--map-by", "--bind-to", "--mca", "--with-ft", "--logdir", "--backend-store-uri"}
MORE |= {"--allow-run-as-root", "--oversubscribe", "--foreground", "--preserve-status", "--signal"}
#: arguments of a search from Python
IN_PYTHON = {*SearchArguments.__annotations__}


@cache
def texts(path: Path) -> list[str]:
    """The strings of a module, with `{}` for what is put in; docstrings are no messages."""
    nodes, found = [*ast.walk(tree_of(path))], []
    parts = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    parts |= {node.value for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            found.append("".join(part.value if isinstance(part, ast.Constant) else "{}" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in parts:
            found.append(node.value)
    return found


@cache
def known_extras() -> dict[str, list[str]]:
    return ast.literal_eval(re.search(r"extras_require=(\{.*?\n    \})", SETUP, re.DOTALL)[1])


def extras(text: str) -> list[str]:
    named = re.findall(r"nnlo_opt\[(\w+)\]|`\[(\w+)\]`|extra \[(\w+)\]", text)
    return ["".join(name) for name in named if "".join(name) not in known_extras()]


def options(text: str) -> list[str]:
    named = re.findall(r"(?<![\w-])--[a-z][a-z_-]*[a-z](?![\w-]*\{)", text) if " " in text else []
    return [name for name in named if name.replace("_", "-") not in OPTIONS | MORE and "#SBATCH" not in text]


def commands(text: str) -> list[str]:
    return [name for name in re.findall(r"`nnlo-opt ([\w-]+)", text) if name not in tool.SUBCOMMANDS]


def files(text: str) -> list[str]:
    named = re.findall(r"\b(?:docs|examples|benchmarks|search_spaces|drivers)/[\w./-]*\w", text)
    return [name for name in named if not (REPOSITORY / name).exists()]


def unquoted(text: str) -> list[str]:
    """The extras that a shell would take for a pattern of file names."""
    return re.findall(r"""(?<!['"/\w])nnlo_opt\[\S+|install \.\[\S+""", text)


@pytest.mark.parametrize("missing", [extras, options, commands, files, unquoted])
def test_what_a_message_names_exists(missing):
    named = [(path, text) for path in SOURCES.values() for text in texts(path)]
    assert not {f"{path.relative_to(ROOT)}: {name}" for path, text in named for name in missing(text)}


def test_no_page_installs_extras_without_quotes():
    pages = [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
    assert not {page: found for page in pages if (found := unquoted(page.read_text()))}


def test_what_the_checks_find():
    assert unquoted("`pip install nnlo_opt[data]` or `pip install 'nnlo_opt[data]'`") == ["nnlo_opt[data]`"]
    assert extras("Run `pip install nnlo_opt[tensorflow]` (or `[mpich]`).") == ["tensorflow"]
    assert options("Drop `--pruner-{}`, or give `--epoch` and --batch.") == ["--epoch"]
    assert commands("see `nnlo-opt shows`") == ["shows"]
    assert files("see docs/nowhere.md and docs/scaling.md") == ["docs/nowhere.md"]


#: parts whose messages are read in Python, too
FOR_BOTH = ("core/", "engine/", "app/run/", "app/api/", "app/analysis/", "app/reporting/")
#: flags in help, in a command line, or beside the words of Python
OF_COMMANDS = {
    "app/run/afterwards/mirrors.py: --overwrite",
    "app/run/start/identity.py: --no-shuffle",
    "core/jobs/repaired.py: --warm-start",
    "core/space/fixing.py: --fix",
    "core/trials/identity.py: --external-data",
    "core/trials/objectives.py: --figure-of-merit",
    "core/trials/run_directory.py: --overwrite",
    "core/update_rules/easgd.py: --learning-rate",
}


def test_a_message_for_both_doors_writes_no_flag_of_an_option_that_python_has():
    flags, found = {"--" + name.replace("_", "-") for name in {*IN_PYTHON, "no_shuffle"}}, set()
    for path in SOURCES.values():
        if (name := str(path.relative_to(ROOT))).startswith(FOR_BOTH) and name != "app/run/options/table.py":
            written = {flag for text in texts(path) for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", text)}
            found |= {f"{name}: {flag}" for flag in written & flags}
    assert found == OF_COMMANDS


def test_what_is_spelled_for_both_doors_is_an_option_that_python_has():
    calls = [node for path in SOURCES.values() for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
    named = [call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id == "spelled"]
    assert {name.value for name in named if isinstance(name, ast.Constant)} - IN_PYTHON == {"model"}
