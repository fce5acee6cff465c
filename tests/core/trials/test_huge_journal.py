"""A journal that is huge: what follows its last line is refused, in bounded memory, by every command that reads it."""

import os
import tracemalloc
from contextlib import suppress

import pytest

from nnlo_opt.app.reporting import watch
from nnlo_opt.app.reporting.follow import JournalFollower
from nnlo_opt.cli import tool
from nnlo_opt.core.base.errors import EXIT_WRONG_REQUEST, JournalError, NnloError
from nnlo_opt.core.trials.journal import MOST_LINE_BYTES, Journal, encode_line, load_events
from nnlo_opt.core.trials.repair import repair
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME
from tests.helpers.stories import START, UNDER_WAY, failed, write_journal

#: 4 TB, 15 GiB: one is larger than any file that is copied, the other larger than the memory of many machines
SIZES = (4 * 10**12, 15 * 2**30)


@pytest.fixture
def huge(tmp_path, request):
    """Run whose journal has a hole behind its last line."""
    (tmp_path / "r").mkdir()
    run = write_journal(tmp_path / "r", UNDER_WAY)
    os.truncate(run / JOURNAL_NAME, request.param)
    return run


def peak_bytes(function, *arguments):
    tracemalloc.start()
    try:
        with suppress(NnloError, ValueError):
            function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("huge", SIZES, indirect=True, ids=str)
def test_it_is_read_in_bounded_memory(huge):
    path = huge / JOURNAL_NAME
    for read in (load_events, Journal, lambda path: JournalFollower(path).read()):
        assert peak_bytes(read, path) < 5 * MOST_LINE_BYTES


@pytest.mark.parametrize("huge", SIZES[:1], indirect=True, ids=str)
@pytest.mark.parametrize("words", ["show", "status", "watch", "best", "report", "stop", "export --to csv", "clean"])
def test_every_command_refuses_it_with_the_line_and_a_remedy(huge, capsys, monkeypatch, words):
    monkeypatch.setattr(watch, "MOST_FAILED", 1)
    assert tool.main([*words.split(), str(huge)], "nnlo-opt") == EXIT_WRONG_REQUEST
    said = " ".join("".join(capsys.readouterr()).split())
    assert f"damaged in line {len(UNDER_WAY) + 1} (it has more than" in said
    assert "nnlo-opt repair" in said


@pytest.mark.parametrize("huge", SIZES[:1], indirect=True, ids=str)
def test_repair_says_how_to_keep_what_is_sound(huge):
    with pytest.raises(JournalError, match="`truncate -s ") as caught:
        repair(huge)
    os.truncate(huge / JOURNAL_NAME, int(str(caught.value).split("truncate -s ")[1].split()[0]))
    assert load_events(huge / JOURNAL_NAME) == UNDER_WAY


@pytest.mark.parametrize("huge", [200 * 2**20], indirect=True, ids=str)
def test_repair_drops_a_hole_that_is_not_too_large_to_be_copied(huge):
    found, damaged = repair(huge)
    assert found.events == UNDER_WAY
    assert damaged.stat().st_size == 200 * 2**20
    assert load_events(huge / JOURNAL_NAME) == UNDER_WAY


def test_an_event_that_no_reader_would_take_for_a_line_is_not_written(tmp_path):
    journal = Journal(tmp_path / JOURNAL_NAME)
    journal.append([START])
    with pytest.raises(JournalError, match="lines of at most"):
        journal.append(failed(0, reason="x" * MOST_LINE_BYTES))
    journal.close()
    assert load_events(tmp_path / JOURNAL_NAME) == [START]
    assert len(encode_line(0, failed(0, reason="x" * (MOST_LINE_BYTES - 1000))[-1])) < MOST_LINE_BYTES
