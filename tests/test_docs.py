"""README and docs/: links lead somewhere, names and options exist, README stays short, examples are valid."""

import json
import re
import subprocess
import sys
from contextlib import redirect_stdout, suppress
from functools import cache
from io import StringIO
from pathlib import Path

import pytest

import nnlo_opt
from nnlo_opt.app.commands.driver_options import driver_options
from nnlo_opt.app.commands.process import HelpRequested
from nnlo_opt.cli import tool
from tests.helpers.pages import FENCE, PAGES, README, REPOSITORY, Kind, blocks_of, name_of, prose_of
from tests.helpers.sources import house_imports_of

PACKAGE = Path(nnlo_opt.__file__).parent

COMMANDS = (*tool.DRIVERS, "GetData", "BuildModel", "horovodrun", "nnlo-opt")
SUBCOMMANDS = (
    "GetData from-arrays",
    "nnlo-opt show",
    "nnlo-opt watch",
    "nnlo-opt status",
    "nnlo-opt report",
    "nnlo-opt best",
    "nnlo-opt enqueue",
    "nnlo-opt stop",
    "nnlo-opt best-model",
    "nnlo-opt export",
    "nnlo-opt ensemble",
    "nnlo-opt list",
    "nnlo-opt compare",
    "nnlo-opt clean",
    "nnlo-opt space",
    "nnlo-opt repair",
    "nnlo-opt simulate",
    "nnlo-opt launch",
    "nnlo-opt plan",
    "nnlo-opt doctor",
    "nnlo-opt completion",
    "nnlo-opt examples",
    "nnlo-opt run-legacy",
)
#: options in the text that belong to other programs
FOREIGN = frozenset({"--bind-to", "--with-ft", "--kill-on-bad-exit", "--mpi", "--version", "--help", "--help-all"})
FOREIGN |= {"--hostfile", "--mca", "--prtemca", "--map-by", "--shm-size", "--signal", "--batch", "--ntasks-per-node"}
FOREIGN |= {"--exact", "--gpus-per-task", "--host", "--logdir", "--backend-store-uri", "--strict", "--nproc-per-node"}
FOREIGN |= {"--layers", "--allow-run-as-root", "--no-binary", "--no-cache-dir", "--oversubscribe", "--pty"}
FOREIGN |= {"--masters", "--easgd", "--tf", "--profile"}  # former names

#: ends of names of files, which are no modules
FILES = (".interrupted", ".csv", ".json", ".jsonl", ".lock", ".npz", ".owner", ".py", ".yaml")

OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9_-]*[a-z0-9]")


def anchors_of(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", prose_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def commands_of(page: Path) -> list[tuple[str, str]]:
    """Every option of our commands in the code of a page, with its command; a backslash at its end joins a line."""
    blocks = [block.text for block in blocks_of(page) if block.kind is not Kind.PROGRAM]
    found = []
    for line in "\n".join(blocks).replace("\\\n", " ").splitlines():
        command = ""
        for word in line.split("#")[0].split():
            if word in COMMANDS:
                command = word
            elif f"{command} {word}" in SUBCOMMANDS:
                command = f"{command} {word}"
            elif word == "&&":
                command = ""
            elif command == "nnlo-opt plan" and word == "--":
                command = "OptimizationDriver"
            elif command and word.startswith("--") and word != "--":
                found.append((command, word.split("=")[0]))
    return found


@cache
def options_of(command: str) -> frozenset[str]:
    """The options in the help of a command, with hyphens."""
    name, *arguments = command.split()
    if name in tool.DRIVERS:
        with pytest.raises(HelpRequested) as asked:
            driver_options(name, ["--help-all"])
        return frozenset(OPTION.findall(str(asked.value)))
    with redirect_stdout(StringIO()) as said, suppress(SystemExit):
        tool.main([*arguments, "--help"], name)
    return frozenset(OPTION.findall(said.getvalue()))


def is_option(word: str, options: frozenset[str]) -> bool:
    """True if `word` is one of `options`, or short for a single one."""
    option = word.replace("_", "-")
    return option in options or len([name for name in options if name.startswith(option)]) == 1


def is_python(name: str) -> bool:
    """True if `folder.module`, `folder.module.Name` or `folder.Name` of a page stands in the package."""
    place, parts = PACKAGE, name.removeprefix("nnlo_opt.").split(".")
    while parts and (place / parts[0]).is_dir():
        place /= parts.pop(0)
    module = place / (f"{parts.pop(0)}.py" if parts and (place / f"{parts[0]}.py").is_file() else "__init__.py")
    return module.is_file() and {*parts} <= words_of(module)


@cache
def words_of(module: Path) -> frozenset[str]:
    return frozenset(re.findall(r"\w+", module.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_and_anchors_lead_somewhere(page):
    links = re.findall(r"\]\(([^)\s]+)\)", prose_of(page))
    lost = []
    for link in (link for link in links if "://" not in link):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors_of(target)):
            lost.append(link)
    assert not lost


def test_the_table_of_the_readme_has_every_page():
    table = README.read_text().partition("## Documentation")[2].partition("\n## ")[0]
    pages = {name_of(page) for page in PAGES} - {"README.md", "SECURITY.md", "checkpoints/README.md"}
    assert pages <= {*re.findall(r"\]\(([^)]+)\)", table)}


def stale_modules_of(text: str) -> list[str]:
    """The names of modules of ours, and of what is in them, that a text quotes and that do not exist."""
    quoted = re.findall(r"`([^`\n]+)`", text)
    roots = {path.stem for path in PACKAGE.glob("*.py")} | {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    dotted = [name for name in quoted if re.fullmatch(r"[a-z_]+(\.\w+)+", name) and not name.endswith(FILES)]
    return [n for n in dotted if n.removeprefix("nnlo_opt.").split(".")[0] in roots and not is_python(n)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_modules_that_pages_name_exist(page):
    files = re.findall(r"`([\w/]+/\w+\.py)`", prose_of(page))
    assert not stale_modules_of(prose_of(page))
    assert not [name for name in files if not any((root / name).is_file() for root in (PACKAGE, REPOSITORY))]


def test_modules_that_docstrings_and_comments_name_exist():
    texts = {str(path.relative_to(PACKAGE)): path.read_text() for path in PACKAGE.rglob("*.py")}
    assert not {name: stale for name, text in texts.items() if (stale := stale_modules_of(text))}


def test_names_that_the_architecture_quotes_exist():
    words = frozenset().union(*map(words_of, PACKAGE.rglob("*.py")))
    pages = [page for page in PAGES if "architecture" in name_of(page)]
    quoted = {name for page in pages for name in re.findall(r"`([A-Z][a-zA-Z]+(?:\.\w+)?)`", prose_of(page))}
    assert not {part for name in quoted for part in name.split(".")} - words


def test_each_of_the_three_walks_has_at_most_18_files_that_belong_together():
    section = (REPOSITORY / "docs/architecture.md").read_text().partition("## Three walks\n")[2].partition("\n## ")[0]
    rows = [re.findall(r"(?<=\|)[^|]*", line)[1:4] for line in section.splitlines() if re.match(r"\| \d", line)]
    assert len(rows) <= 18
    for column in zip(*rows, strict=True):
        names = [found[1] for cell in column if (found := re.match(r" `([^`]+)`", cell))]
        modules = [name for name in names if not name.endswith(".js")]
        assert len(set(names)) == len(names) > 10
        # Each module imports, or starts, another one of the walk, or is imported by one.
        pairs = {(name, other) for name in modules for other in house_imports_of(name) & set(modules)}
        assert {name for pair in pairs for name in pair} == set(modules)


@pytest.mark.parametrize("part", ["core", "engine", "app", "tools", "ancestors"])
def test_the_page_of_a_part_has_each_of_its_folders_in_at_most_60_lines(part):
    page = (PACKAGE / part / "README.md").read_text()
    assert len(page.splitlines()) <= 60
    folders = [path.parent.name for path in PACKAGE.glob(f"{part}/*/__init__.py")]
    assert not [folder for folder in folders if f"`{folder}/`" not in page]


@pytest.mark.parametrize("part", ["core", "engine", "app", "tools", "ancestors"])
def test_the_page_of_a_part_names_what_exists(part):
    folders = {path.parent.name for path in PACKAGE.glob(f"{part}/*/__init__.py")}
    for line in (PACKAGE / part / "README.md").read_text().splitlines():
        # What a row of the table names is in its folder; anything else in the part, or in the repository.
        row = re.search(r"\| `(\w+)/` \|", line)
        places = [PACKAGE / part / row[1]] if row else [PACKAGE / part, REPOSITORY]
        files = re.findall(r"`([\w/]+\.py)`", line)
        assert not [name for name in files if not any((place / name).is_file() for place in places)], line
        dotted = [n for n in re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", line) if n.split(".")[0] in folders]
        assert not [name for name in dotted if not name.endswith(FILES) and not is_python(f"{part}.{name}")], line
        assert not [link for link in re.findall(r"\]\(([^)#]+)", line) if not (PACKAGE / part / link).exists()], line


def test_the_architecture_has_everything_that_lies_beside_the_parts():
    page = (REPOSITORY / "docs/architecture.md").read_text()
    beside = [f"`{path.parent.name}/`" for path in PACKAGE.glob("*/__init__.py")]
    assert not [name for name in [*beside, "`space.py`", "`extend.py`", "`moved.py`"] if name not in page]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_options_that_pages_name_exist(page):
    commands = [*COMMANDS, *SUBCOMMANDS]
    everywhere = FOREIGN.union(*map(options_of, commands))
    quoted = [text for text in re.findall(r"`([^`]+)`", prose_of(page)) if "benchmarks/" not in text]
    named = {option for text in quoted for option in OPTION.findall(text)}
    assert not {option for option in named if not is_option(option, everywhere)}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_commands_have_the_options_that_pages_give_them(page):
    assert not [
        (command, option)
        for command, option in commands_of(page)
        if not is_option(option, options_of(command) | FOREIGN)
    ]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_python_in_pages_compiles(page):
    for text in (text for language, text in FENCE.findall(page.read_text()) if language == "python"):
        compile(text, name_of(page), "exec")


def test_the_examples_of_the_readme_define_what_they_search():
    for text in (text for language, text in FENCE.findall(README.read_text()) if language == "python"):
        if "nnlo_opt.optimize(" in text:
            continue  # searches when it is executed: tests/mpi/test_pages_ranks.py does
        module: dict = {"__name__": "example"}
        exec(compile(text, "README.md", "exec"), module)
        searched = module.get("objective") or module.get("get_model")
        assert searched is None or searched.parameter_range


def test_every_file_names_the_same_version():
    version = re.escape(nnlo_opt.__version__)
    entry = re.search(rf"^## \[{version}\] - (\S+)$", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert entry, "the changelog has no entry of this version"
    date = "" if entry[1] == "unreleased" else f"\ndate-released: {entry[1]}"
    cited = (REPOSITORY / "CITATION.cff").read_text()
    assert re.search(rf"^version: {version}{date}$", cited, re.MULTILINE)
    assert bool(date) == ("date-released" in cited)
    assert re.search(rf"^  version = {{{version}}},$", README.read_text(), re.MULTILINE)


SCALING = REPOSITORY / "docs" / "scaling.md"


def test_the_page_on_scaling_is_what_its_command_prints():
    (command,) = re.findall(r"`python (benchmarks/scaling/scaling\.py[^`]*)` prints this page", SCALING.read_text())
    words = [sys.executable, *command.split()]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == SCALING.read_text(), f"write it anew: python {command} > docs/scaling.md"


@pytest.mark.proof
def test_the_simulation_that_the_page_on_scaling_is_about_runs():
    words = [sys.executable, "benchmarks/search/simulation.py", "--quick"]
    done = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=True)
    assert {row["n_blocks"] for row in json.loads(done.stdout)["dispatch"]} == {1, 10, 100}


@pytest.mark.proof
def test_a_simulation_finds_what_the_page_on_scaling_says(capsys):
    (command,) = re.findall(r"`nnlo-opt (simulate[^`]*) --seed 0`", " ".join(SCALING.read_text().split()))
    for seed in range(5):
        assert tool.main([*command.split(), "--json", "--seed", str(seed)]) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    regrets = sorted(result["regret"] for result in found if result["n_blocks"] == 64)
    assert f"| random | 64 | {regrets[2]:.3f} ({regrets[-1]:.3f}) |" in SCALING.read_text()


def test_the_readme_is_short():
    assert len(README.read_bytes()) <= 10_240
