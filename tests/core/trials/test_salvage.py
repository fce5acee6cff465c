import json
import zlib
from io import BytesIO
from pathlib import Path

import pytest

from nnlo_opt.core.base.errors import JournalError
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.journal import encode_line, read_events
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.repair import salvage
from tests.helpers.stories import START, lines_of, trial

GOLDEN = (Path(__file__).parents[2] / "golden" / "journal-format-1.jsonl").read_bytes()
EVENTS = [START, *trial(0), *trial(1), *trial(2), ev.RunCompleted(time_s=9.0, reason="done")]


def salvaged(data):
    return salvage(BytesIO(data), "j")


def without(*numbers):
    """The journal of `EVENTS` without some of its lines, and what is salvaged of it."""
    return salvaged(b"".join(line for n, line in enumerate(lines_of(EVENTS)) if n not in numbers))


def states(found):
    return [(t.point["x"], t.state.value) for t in Ledger(found.events).trials]


def test_of_a_sound_journal_everything_is_kept():
    found = without()
    assert found.events == EVENTS
    assert (found.gaps, found.n_damaged, found.dropped, found.lost, found.still_open) == ([], 0, [], [], [])
    assert not found.renumbers


def test_a_lost_suggestion_takes_its_trial_with_it_and_the_later_ones_move_up():
    found = without(6)
    assert states(found) == [(0, "complete"), (2, "complete")]
    assert found.gaps == [(7, 7)]
    assert (found.lost, found.moved) == ([1], {0: 0, 2: 1})
    assert found.dropped == [
        "FoldAssigned of trial 1",
        "FoldBegan of assignment 1",
        "AssignmentFinished of assignment 1",
        "TrialCompleted of trial 1",
    ]


def test_a_lost_end_of_a_fold_opens_its_trial_again():
    found = without(9)
    assert states(found) == [(0, "complete"), (1, "running"), (2, "complete")]
    assert found.still_open == [1]
    assert found.dropped == ["TrialCompleted of trial 1"]
    assert not found.renumbers


def test_a_lost_assignment_opens_its_trial_again_and_the_later_assignments_move_up():
    found = without(7)
    assert states(found) == [(0, "complete"), (1, "pending"), (2, "complete")]
    assert [a.number for a in Ledger(found.events).assignments] == [0, 1]
    assert not found.renumbers


@pytest.mark.parametrize("number", [5, 8, 16])
def test_a_lost_event_on_which_no_other_depends_is_all_that_is_lost(number):
    found = without(number)
    assert len(found.events) == len(EVENTS) - 1
    assert found.dropped == []


def test_a_lost_end_of_an_assignment_that_was_made_again_is_put_in():
    again = EVENTS[2].replaced(assignment=1, attempt=2)
    events = [*EVENTS[:3], ev.AssignmentLost(time_s=2.0, assignment=0), START, again]
    lines = lines_of(events)
    found = salvaged(b"".join(lines[:3] + lines[4:]))
    assert [type(event).__name__ for event in found.events[-3:]] == ["RunStarted", "AssignmentLost", "FoldAssigned"]
    assert found.dropped == []


def test_a_lost_first_start_is_told_by_a_later_one():
    later = START.replaced(time_s=50.0, unix_s=150.0, n_blocks=2)
    lines = lines_of([*EVENTS[:-1], later])
    found = salvaged(b"".join(lines[1:]))
    ledger = Ledger(found.events)
    assert (ledger.identity.plain, ledger.first_start_unix_s) == (START.identity, 100.0)
    assert len(ledger.sessions) == 2
    assert len(ledger.trials) == 3


@pytest.mark.parametrize("data", [b"", b"hello\n", b"".join(lines_of(EVENTS)[1:]), bytes(1000)], ids=list("1234"))
def test_without_a_start_nothing_can_be_resumed(data):
    with pytest.raises(JournalError, match="intact RunStarted"):
        salvaged(data)


def test_lines_twice_or_exchanged_lose_nothing():
    lines = lines_of(EVENTS)
    found = salvaged(b"".join([*lines[:4], lines[5], lines[4], lines[4], *lines[6:]]))
    assert found.events == EVENTS
    assert (found.n_damaged, found.gaps) == (1, [])


def with_values(line, **values):
    """The line of a journal with other values, which no version refused when it was written, and the right checksum."""
    body = json.dumps(json.loads(line) | values, separators=(",", ":"))
    body = "{" + body[body.index('"event"') :]
    seq = json.loads(line)["seq"]
    return (
        b'{"seq":%d,"crc":"%08x",' % (seq, zlib.crc32(body.encode(), zlib.crc32(b"", seq))) + body[1:].encode() + b"\n"
    )


def test_an_event_that_cannot_be_read_is_dropped_with_all_that_depends_on_it():
    lines = lines_of(EVENTS)
    lines[3] = with_values(lines[3], epoch=-5)
    lines[7] = with_values(lines[7], n_ranks=1e30)
    with pytest.raises(JournalError, match=r"damaged in line 4 .*an impossible value.*nnlo-opt repair"):
        read_events(b"".join(lines), "r/journal.jsonl")
    found = salvaged(b"".join(lines))
    assert states(found) == [(0, "complete"), (1, "pending"), (2, "complete")]
    assert (found.gaps, found.n_damaged, found.n_timed) == ([(4, 4), (8, 8)], 2, 0)
    again = b"".join(encode_line(seq, event) for seq, event in enumerate(found.events))
    assert read_events(again, "again")[0] == found.events


@pytest.mark.parametrize(("shift_s", "unix_s"), [(0.0, -5.0), (0.0, 1e12), (2e10, 100.0), (-2e10, 100.0)], ids=str)
def test_times_of_a_clock_that_was_wrong_by_centuries_are_mended(shift_s, unix_s):
    lines = [with_values(line, time_s=json.loads(line)["time_s"] + shift_s) for line in lines_of(EVENTS)]
    lines[0] = with_values(lines[0], unix_s=unix_s)
    with pytest.raises(JournalError, match="damaged in line 1 "):
        read_events(b"".join(lines), "j")
    found = salvaged(b"".join(lines))
    assert states(found) == [(n, "complete") for n in range(3)]
    assert found.n_timed == (len(EVENTS) if shift_s else 1)
    again = b"".join(encode_line(seq, event) for seq, event in enumerate(found.events))
    assert read_events(again, "again")[0] == found.events


def test_an_event_of_a_later_version_is_not_dropped():
    lines = lines_of(EVENTS)
    lines[3] = with_values(lines[3], mood="good")
    with pytest.raises(JournalError, match="use the version that wrote it"):
        salvaged(b"".join(lines))
