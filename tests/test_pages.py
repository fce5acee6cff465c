"""What the pages show is what their commands print; here those that start no rank, and the comparison itself."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from tests.helpers.launcher import seen_within
from tests.helpers.pages import GUIDE, Block, Kind, blocks_of, name_of
from tests.helpers.printed import NOT_RUN, SAMPLE, Reader, first_difference, needs, readings

SHOWN = [
    pytest.param(block.text, id=f"{name_of(page)}:{block.line}")
    for page in GUIDE
    for block in blocks_of(page)
    if block.kind is Kind.SHOWN
]


@pytest.mark.parametrize("shown", SHOWN)
def test_other_numbers_are_the_same_and_another_word_is_not(shown):
    printed = "\n".join(["before", *shown.replace("…", "and more").splitlines(), "after"])
    printed = re.sub(r"(?<![A-Za-z_])\d", lambda digit: str((int(digit[0]) + 1) % 10), printed)
    assert first_difference(shown, printed) is None
    for word in re.finditer(r"[A-Za-z]{2,}", shown):
        assert first_difference(f"{shown[: word.start()]}zebra{shown[word.end() :]}", printed), word


@pytest.mark.parametrize(
    ("shown", "printed", "difference"),
    [
        ("trial 0 starts\n…\nBest: trial 13", "trial 0 starts\nBest: trial 7", None),
        ("trial 0 starts\n…\nBest: trial 13", "said before\ntrial 0 starts\none\ntwo\nBest: trial 7\nsaid after", None),
        ("Saved: …\nthe end", "Saved: a, b and c\nthe end", None),
        ("running for 0:00:12, 3.15.1, -1.5e-08", "running for 1:20:00, 2.9, 3", None),
        ("a  4 s\n------", "a       3 min\n----------------", None),
        ("━━━━──── 5/20 █▁▁▁", "━━━━━━━━ 20/20 ▄▁", None),
        ("one\ntwo", "one\nthree\ntwo", "two"),
        ("one\n…\ntwo", "two\none", "two"),
        ("one", "someone", "one"),
        ("best 3", "best", "best 3"),
        ("trial2", "trial3", "trial2"),
        ("one\n\ntwo", "one\ntwo", "(an empty line)"),
    ],
)
def test_only_what_varies_may_vary(shown, printed, difference):
    assert first_difference(shown, printed) == difference


def follow(desk: Path, *blocks: tuple[Kind, str]) -> None:
    Reader("a page", desk).follow(Block(kind, text, "", 1, "it.txt") for kind, text in blocks)


def test_a_reader_types_all_commands_in_one_shell_and_leaves_nothing_running(desk):
    typed = "mkdir there && cd there\nexport WORD=two\nsleep 600 & echo $! > pid\necho one $WORD; cat ../it.txt"
    follow(desk, (Kind.FILE, "three 3\n"), (Kind.COMMANDS, typed), (Kind.SHOWN, "one two\nthree 4\n"))
    follow(desk, (Kind.PROGRAM, "print('/home', 7)"), (Kind.SHOWN, "/home 8"))
    follow(desk, (Kind.COMMANDS, "pwd; exit 3  # the exit code 3 says so"), (Kind.SHOWN, "/home/me/there"))
    sleeping = int((desk / "there/pid").read_text())
    assert seen_within(10, lambda: not psutil.pid_exists(sleeping))
    with pytest.raises(AssertionError, match="code 3"):
        follow(desk, (Kind.COMMANDS, "exit 3"))
    with pytest.raises(AssertionError, match="shows a line that was not printed:\nthree"):
        follow(desk, (Kind.COMMANDS, "echo one; echo two"), (Kind.SHOWN, "one\nthree"))


def test_every_reason_not_to_run_has_what_is_not_run():
    listed = {(page, begin) for page, reasons in NOT_RUN.items() for begin in reasons}
    texts = [
        (name_of(page), text) for page in GUIDE for block in blocks_of(page) for text in (block.text, *block.commands)
    ]
    assert listed == {
        (page, begin) for page, begin in listed for name, text in texts if name == page and text.startswith(begin)
    }


@pytest.mark.proof
@pytest.mark.parametrize(("page", "blocks"), readings(with_ranks=False))
def test_a_page_shows_what_its_commands_print(page, blocks, desk):
    Reader(page, desk).follow(blocks)


def programs() -> list:
    """Every Python block of the pages that only `make proofs` follows, with what it prints."""
    marks = {"print(": pytest.mark.proof, "\nimport keras": pytest.mark.keras, "MPIManager": pytest.mark.keras}
    found = []
    for page, blocks in (reading.values for reading in readings(with_ranks=True) if reading.id not in SAMPLE):
        for block, after in pairwise([*blocks, None]):
            text = f"\n{block.text}"
            is_python = block.kind is Kind.PROGRAM or block.name.endswith(".py")
            if is_python and not re.search(r"checkpoints/(?!mine)", text):
                shown = [after] if after and after.kind is Kind.SHOWN else []
                marked = [*needs(text), *(mark for word, mark in marks.items() if word in text)]
                program = replace(block, kind=Kind.PROGRAM)
                found.append(pytest.param(page, [program, *shown], id=f"{page}:{block.line}", marks=marked))
    return found


@pytest.mark.parametrize(("page", "blocks"), programs())
def test_python_of_a_page_runs_as_it_stands(page, blocks, desk):
    Reader(page, desk).follow(blocks)
