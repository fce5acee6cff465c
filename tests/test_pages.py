"""What the pages show is what their commands print; here those that start no rank."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.helpers import pages
from tests.helpers.pages import GUIDE, Kind, blocks_of, name_of
from tests.helpers.printed import NOT_RUN, SAMPLE, Reader, needs, readings


def test_every_reason_not_to_run_has_what_is_not_run():
    listed = {(page, begin) for page, reasons in NOT_RUN.items() for begin in reasons}
    texts = [
        (name_of(page), text) for page in GUIDE for block in blocks_of(page) for text in (block.text, *block.commands)
    ]
    assert listed == {
        (page, begin) for page, begin in listed for name, text in texts if name == page and text.startswith(begin)
    }


@pytest.mark.parametrize(
    "words",
    [
        "Save this in `toy.py`:",
        "Then save it as `toy.py`:",
        "Copy the lines below, and save them as `toy.py`:",
        "Write to `toy.py`:",
    ],
)
def test_a_file_that_a_page_names_in_other_words_is_no_program(words, tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "REPOSITORY", tmp_path)
    (page := tmp_path / "page.md").write_text(f"{words}\n\n```python\nX = 1\n```\n")
    with pytest.raises(ValueError, match=r"page\.md, line 3: say \"Save this as `NAME`\""):
        list(blocks_of(page))


@pytest.mark.proof
@pytest.mark.parametrize(("page", "blocks"), readings(with_ranks=False))
def test_a_page_shows_what_its_commands_print(page, blocks, desk):
    Reader(page, desk).follow(blocks)


def programs() -> list:
    """Every Python block of the pages that only `make proofs` follows, with what it prints."""
    marks = {"\nimport keras": pytest.mark.keras, "MPIManager": pytest.mark.keras}
    found = []
    for page, blocks in (reading.values for reading in readings(with_ranks=True) if reading.id not in SAMPLE):
        for block, after in pairwise([*blocks, None]):
            text = f"\n{block.text}"
            is_python = block.kind is Kind.PROGRAM or block.name.endswith(".py")
            if "nnlo_opt.controller" in text:  # needs ranks: tests/mpi/test_controller_ranks.py runs it
                continue
            if is_python and not re.search(r"checkpoints/(?!mine)", text):
                shown = [after] if after and after.kind is Kind.SHOWN else []
                marked = [*needs(text), *(mark for word, mark in marks.items() if word in text)]
                program = replace(block, kind=Kind.PROGRAM)
                found.append(pytest.param(page, [program, *shown], id=f"{page}:{block.line}", marks=marked))
    return found


@pytest.mark.proof
@pytest.mark.parametrize(("page", "blocks"), programs())
def test_python_of_a_page_runs_as_it_stands(page, blocks, desk):
    Reader(page, desk).follow(blocks)
