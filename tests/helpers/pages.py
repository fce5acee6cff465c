"""Pages of the documentation, and their blocks in order: files, programs, commands, and what these print."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum, auto
from pathlib import Path
from textwrap import dedent

REPOSITORY = Path(__file__).parents[2]
README = REPOSITORY / "README.md"
#: pages whose commands are typed by readers, in this order
GUIDE = [README, REPOSITORY / "examples/README.md", *sorted((REPOSITORY / "docs/guide").glob("*.md"))]
PAGES = [
    *GUIDE[:2],
    REPOSITORY / "CONTRIBUTING.md",
    REPOSITORY / "CHANGELOG.md",
    REPOSITORY / "SECURITY.md",
    REPOSITORY / "checkpoints" / "README.md",
    *sorted((REPOSITORY / "docs").rglob("*.md")),
]
FENCE = re.compile(r"^```([\w{}-]*)\n((?s:.*?))^```$", re.MULTILINE)
#: a fenced block, several indented lines, or a heading
_PART = re.compile(rf"{FENCE.pattern}|^(?P<indented>(?:    .+\n)+)|^#+ (?P<heading>.+)$", re.MULTILINE)
_NAMED = re.compile(r"Save this as `([^`]+)`")
#: what says so in other words
_NEARLY_NAMED = re.compile(r"\b(save|write|put|store|copy|create)\b[^.]*`[^`]+\.\w+`", re.IGNORECASE)
#: how a fenced block of commands begins
_TYPED = re.compile(r"(mpirun|python|nnlo-opt|GetData) ")
#: languages of blocks that nobody runs
_QUOTED = ("bibtex", "{eval-rst}")


def name_of(page: Path) -> str:
    """Return the path of a page in the repository."""
    return str(page.relative_to(REPOSITORY))


def prose_of(page: Path) -> str:
    """Return the page without its fenced blocks."""
    return FENCE.sub("", page.read_text())


class Kind(StrEnum):
    """What a block of a page is: a file that the reader saves, a program in Python, commands, or what was printed."""

    FILE = auto()
    PROGRAM = auto()
    COMMANDS = auto()
    SHOWN = auto()


@dataclass(frozen=True)
class Block:
    """A block of a page, under a heading of it, at a line counted from 1; `name` is that of a file."""

    kind: Kind
    text: str
    heading: str
    line: int
    name: str = ""

    @property
    def commands(self) -> list[str]:
        """Its lines, each with those that a backslash at its end joins to it."""
        return re.findall(r"(?:.*\\\n)*.+", self.text)


def blocks_of(page: Path) -> Iterator[Block]:
    """Yield the blocks of a page in their order; the words before a file say "Save this as `NAME`"."""
    text, heading = page.read_text(), ""
    for part in _PART.finditer(text):
        heading = part["heading"] or heading
        line = text.count("\n", 0, part.start()) + 1
        if part["indented"]:
            yield Block(Kind.COMMANDS, dedent(part["indented"]), heading, line)
        elif not part["heading"] and (language := part[1]) not in _QUOTED:
            before = " ".join(text[: part.start()].rstrip().rpartition("\n\n")[2].split())
            named = _NAMED.search(before)
            if not named and (language not in ("", "python") or _NEARLY_NAMED.search(before)):
                raise ValueError(f'{name_of(page)}, line {line}: say "Save this as `NAME`" before this file')
            kind = Kind.FILE if named else Kind.PROGRAM if language else Kind.SHOWN
            if kind is Kind.SHOWN and _TYPED.match(part[2]):
                kind = Kind.COMMANDS
            yield Block(kind, part[2], heading, line, named[1] if named else "")
