"""What a page shows against what its commands print, and a run of all that is on a page.

Words must be the same. A number stands for any number, also with a unit of time after it; a bar or a rule for one of
any length; blanks for any number of blanks. A line `…` stands for any lines, and `…` in a line for the rest of it.
"""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import yaml

from tests.helpers import launcher
from tests.helpers.pages import GUIDE, REPOSITORY, Block, Kind, blocks_of, name_of

#: page -> how a command, a program or what is shown begins -> why it is not run, or not compared
NOT_RUN: dict[str, dict[str, str]] = yaml.safe_load((REPOSITORY / "tests/not_run.yaml").read_text())
#: a part of a line that may be another one -> what it becomes on both sides
_VARIES = {
    r"(?<![A-Za-z_])[-+]?\d+(?:[.,:]\d+)*(?:e[-+]?\d+)?(?: (?:s|min|h|days?)\b)?": "#",
    r"[━─]{2,}": "━",
    r"[▁▂▃▄▅▆▇█]+": "▁",
    r"-{4,}": "----",
    r"[ \t]+": " ",
}
#: what commands have that start ranks, or that look at the search of the guide, which has ranks
_RANKS = re.compile(r"mpirun|nnlo-opt launch|nnlo-opt doctor|MPI\.COMM_WORLD|\bCP\b")
#: words of programs and commands that name a package of an extra
_NEEDED = re.compile(r"^ *import (torch|lightning|optuna)$|^from (accelerate)|--mirror (optuna)|--to (wandb)", re.M)
#: pages with ranks that .ci/run follows, as they are short; the others are proofs
SAMPLE = ("docs/guide/python.md", "docs/guide/scripts.md", "docs/guide/torch.md")
#: what a page says instead of the folder in which its commands run
_HOME = "/home/me"
#: longest time for one command, in seconds
TIMEOUT_S = 1500.0


def _lines(text: str) -> list[str]:
    """Return the lines without all that varies."""
    for part, becomes in _VARIES.items():
        text = re.sub(part, becomes, text)
    return [line.strip() for line in text.strip("\n").split("\n")]


def _pattern(shown: list[str]) -> str:
    lines = (r"(?:.*\n)*?" if line == "…" else ".*".join(map(re.escape, line.split("…"))) + r"\n" for line in shown)
    return "^" + "".join(lines)


def first_difference(shown: str, printed: str) -> str | None:
    """Return the first line of `shown` that was not printed after those before it; None if all of them were."""
    wanted, got = _lines(shown), "\n".join(_lines(printed)) + "\n"
    for n in range(1, len(wanted) + 1):
        if not re.search(_pattern(wanted[:n]), got, re.MULTILINE):
            return shown.strip("\n").split("\n")[n - 1] or "(an empty line)"
    return None


def check(shown: str, printed: str, where: str) -> None:
    """Check that a page shows what was printed."""
    line = first_difference(shown, printed)
    assert line is None, f"{where} shows a line that was not printed:\n{line}\n\nPrinted was:\n{printed[-6000:]}"


def readings(with_ranks: bool) -> list:
    """Return the pages of which something runs, each with its blocks: those that start ranks, or the others."""
    found = []
    for page in GUIDE:
        name, blocks = name_of(page), list(blocks_of(page))
        runs = [text for block in blocks if block.kind is not Kind.SHOWN for text in runs_of(name, block)]
        if runs and any(map(_RANKS.search, runs)) == with_ranks:
            found.append(pytest.param(name, blocks, id=name, marks=needs(page.read_text())))
    return found


def needs(text: str) -> list[pytest.MarkDecorator]:
    """Return the marks of the packages of extras that a page or a program names."""
    packages = {found[found.lastindex or 0] for found in _NEEDED.finditer(text)}
    return [pytest.mark.needs(package) for package in sorted(packages)]


def runs_of(page: str, block: Block) -> list[str]:
    """Return the programs and commands of a block that run, or what is shown that is compared."""
    texts = block.commands if block.kind is Kind.COMMANDS else [block.text] if block.kind is not Kind.FILE else []
    return [text for text in texts if not text.startswith(tuple(NOT_RUN.get(page, {})))]


class Reader:
    """Follows a page in a folder: saves its files, runs its programs and commands in order, compares what they print.

    Args:
        page: name of the page.
        folder: where the reader types.
    """

    def __init__(self, page: str, folder: Path) -> None:
        self._page = page
        self._folder = folder
        #: of the last block that printed something; None: all of it was left out
        self._printed: str | None = None

    def follow(self, blocks: Iterable[Block]) -> None:
        """Do what these blocks of the page say."""
        for block in blocks:
            match block.kind:
                case Kind.FILE:
                    (self._folder / block.name).write_text(block.text)
                case Kind.PROGRAM | Kind.COMMANDS:
                    texts = runs_of(self._page, block)
                    if block.kind is Kind.PROGRAM and texts:
                        program = self._folder / f"program_{block.line}.py"
                        program.write_text(block.text)
                        texts = [f"python {program}"]
                    self._printed = "".join(map(self.type, texts)) if texts else None
                case Kind.SHOWN if runs_of(self._page, block):
                    where = f"{self._page}, line {block.line},"
                    assert self._printed is not None, f"{where} shows what was not printed: say why in `not_run.yaml`"
                    check(block.text, self._printed, where)

    def type(self, command: str) -> str:
        """Run one command by bash, with the folder and the variables that those before it have left."""
        state = self._folder / ".state"
        keep = f'trap \'code=$?; {{ export -p; printf "cd %q\\n" "$PWD"; }} > {state}; exit $code\' EXIT'
        said = re.search(r"# .*exit code (\d+)", command)
        job = launcher.Job(1, ["bash", "-c", f"[ ! -e {state} ] || . {state}\n{keep}\n{command}"], self._folder)
        try:
            outcome = job.wait(TIMEOUT_S, int(said[1]) if said else 0)
        except AssertionError as error:
            raise AssertionError(f"{self._page}: $ {command}\n{error}") from None
        finally:
            end_session(job.process.pid)
        return "\n".join([outcome.out, outcome.err]).replace(str(self._folder), _HOME)


def end_session(session: int) -> None:
    """End what a command has left running, in the session that was its own."""
    for process in psutil.process_iter():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if os.getsid(process.pid) == session:
                process.kill()
