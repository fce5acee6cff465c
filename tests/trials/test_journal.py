import errno
import json
import os
import re
import subprocess
import sys
import zlib

import pytest
from stories import lines_of

from nnlo_opt.errors import JournalError
from nnlo_opt.trials import events as ev
from nnlo_opt.trials import journal as module
from nnlo_opt.trials.journal import Journal, decode_line, encode_line, read_events

EVENTS = [
    ev.RunStarted(time_s=0.0, unix_s=1.5e9, n_ranks=3, n_blocks=1, identity={"seed": 0, "x": [1, None]}),
    ev.TrialSuggested(time_s=0.25, trial=0, point={"n": 3, "rate": 1e-3, "text": 'snow ☃ " \\ \n'}),
    ev.FoldAssigned(time_s=0.25, assignment=0, trial=0, fold=0, attempt=1, block=1, team=0, n_ranks=2),
    ev.FoldBegan(time_s=0.5, assignment=0),
    ev.EpochEnded(time_s=0.75, assignment=0, epoch=1, metrics={"loss": 0.1}),
    ev.AssignmentFinished(time_s=1.0, assignment=0, figure_of_merit=0.1, metrics={}, n_epochs=1, train_s=0.5),
    ev.TrialCompleted(time_s=1.0, trial=0, figure_of_merit=0.1, figure_of_merit_std=0.0),
]
LINES = lines_of(EVENTS)
WHOLE = b"".join(LINES)


def reopen(path):
    journal = Journal(path)
    journal.close()
    return journal.events


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.jsonl"


def test_a_line_is_json_that_begins_with_its_number_and_checksum():
    for seq, line in enumerate(LINES):
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        values = json.loads(line)
        assert list(values)[:4] == ["seq", "crc", "event", "time_s"]
        assert values["seq"] == seq
        assert decode_line(seq, line[:-1]) == EVENTS[seq]


@pytest.mark.parametrize(("syncs", "n_synced"), [(True, 1), (False, 0)])
def test_a_durable_write_waits_for_the_disk_unless_the_journal_was_opened_without(path, monkeypatch, syncs, n_synced):
    journal = Journal(path, syncs=syncs)
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    journal.append(EVENTS[:1])
    journal.append(EVENTS[1:2], durable=False)
    monkeypatch.undo()
    journal.close()
    assert len(synced) == n_synced
    assert reopen(path) == EVENTS[:2]


def test_what_was_appended_is_there_when_it_is_opened_again(path):
    journal = Journal(path)
    assert journal.events == []
    journal.append(EVENTS[:2])
    journal.append(EVENTS[2:4], durable=False)
    journal.append([])
    journal.close()
    journal = Journal(path)
    assert journal.events == EVENTS[:4]
    journal.append(EVENTS[4:])
    journal.close()
    assert path.read_bytes() == WHOLE
    assert reopen(path) == EVENTS


def test_every_append_is_in_the_file_when_it_returns(path):
    journal = Journal(path)
    for n, event in enumerate(EVENTS, start=1):
        journal.append([event], durable=n % 2 == 0)
        assert path.read_bytes() == b"".join(LINES[:n])
    journal.close()


@pytest.mark.parametrize("n_lines", [1, 3, len(LINES)], ids=lambda n: f"a write of {n} lines")
def test_a_tail_torn_at_any_byte_is_cut_and_the_journal_goes_on(path, n_lines):
    n_before = len(LINES) - n_lines
    start = len(b"".join(LINES[:n_before]))
    for end in range(start, len(WHOLE)):
        path.write_bytes(WHOLE[:end])
        n_sound = WHOLE[:end].count(b"\n")
        journal = Journal(path)
        assert journal.events == EVENTS[:n_sound]
        assert path.read_bytes() == b"".join(LINES[:n_sound])
        journal.append(EVENTS[n_sound:])
        journal.close()
        assert path.read_bytes() == WHOLE


def test_a_last_line_that_never_reached_the_disk_whole_is_cut(path):
    # A power cut may leave the length of a file without its contents.
    for last in (bytes(len(LINES[-1])), LINES[-1][:20] + bytes(len(LINES[-1]) - 21) + b"\n", bytes(5000)):
        path.write_bytes(b"".join(LINES[:-1]) + last)
        assert reopen(path) == EVENTS[:-1]
        assert path.read_bytes() == b"".join(LINES[:-1])


def is_refused(data):
    """Whether these bytes are said to be damaged, and what to do about it."""
    try:
        read_events(data, "journal.jsonl")
    except JournalError as error:
        remedy = "restore the file from a copy, keep what is sound by `nnlo-opt repair"
        return bool(re.search(f"damaged in line .*{remedy}", str(error)))
    return False


@pytest.mark.parametrize(
    "damage",
    [
        *(lambda byte, flip=flip: bytes([byte[0] ^ flip]) for flip in (0x01, 0x20, 0x80)),
        lambda byte: b"\n",
        lambda byte: b"\0",
        lambda byte: b"",
        lambda byte: b"#" + byte,
    ],
    ids=["bit 0", "bit 5", "bit 7", "newline", "NUL", "missing", "added"],
)
def test_a_byte_changed_missing_or_added_anywhere_before_the_last_line_is_refused(damage):
    for at in range(len(WHOLE) - len(LINES[-1])):
        data = WHOLE[:at] + damage(WHOLE[at : at + 1]) + WHOLE[at + 1 :]
        assert data == WHOLE or is_refused(data)


@pytest.mark.parametrize("data", [WHOLE[10:], WHOLE.replace(b"attempt", b"Attempt"), b"hello", b"".join(LINES[::2])])
def test_a_file_that_is_refused_is_left_as_it_is(path, data):
    path.write_bytes(data)
    before = path.stat()
    with pytest.raises(JournalError, match=str(path)):
        Journal(path)
    assert path.read_bytes() == data
    assert path.stat().st_mtime_ns == before.st_mtime_ns


def test_lines_that_are_missing_repeated_exchanged_or_empty_are_refused():
    for n, line in enumerate(LINES):
        before, after = LINES[:n], LINES[n + 1 :]
        damaged = [[*before, line, line, *after]]
        if after:
            damaged += [before + after, [*before, after[0], line, *after[1:]], [*before, line, b"\n", *after]]
        for lines in damaged:
            assert is_refused(b"".join(lines))


def test_an_event_of_a_later_version_is_refused_even_in_the_last_line(path):
    later = encode_line(len(LINES), EVENTS[-1]).replace(b"TrialCompleted", b"TrialPromoted!")
    body = "{" + later[later.index(b'"event"') : -1].decode()
    data = WHOLE + f'{{"seq":{len(LINES)},"crc":"{zlib.crc32(body.encode(), len(LINES)):08x}",{body[1:]}\n'.encode()
    path.write_bytes(data)
    with pytest.raises(JournalError, match="TrialPromoted"):
        Journal(path)
    assert path.read_bytes() == data


def test_a_file_that_is_something_else_is_refused():
    for data in (
        b"a,b\n1,2\n",
        b"hello",
        b"hello\n",
        b"\n",
        b"{}\n",
        b"\n\n",
        b"{}\n{}\n",
        b"\x89PNG\r\n\x1a\n" * 9,
        bytes(100) + WHOLE,
    ):
        assert is_refused(data)


def test_reading_says_how_many_bytes_are_sound():
    assert read_events(b"", "j") == ([], 0)
    assert read_events(WHOLE, "j") == (EVENTS, len(WHOLE))
    assert read_events(WHOLE + b'{"seq":', "j") == (EVENTS, len(WHOLE))


def test_an_event_that_may_not_be_written_leaves_the_journal_as_it_was(path):
    journal = Journal(path)
    journal.append(EVENTS[:1])
    bad = ev.TrialCompleted(time_s=0.0, trial=0, figure_of_merit=float("nan"), figure_of_merit_std=0.0)
    with pytest.raises(ValueError, match="JSON compliant"):
        journal.append([EVENTS[1], bad])
    assert path.read_bytes() == LINES[0]
    journal.append(EVENTS[1:])
    journal.close()
    assert path.read_bytes() == WHOLE


FULL_DISK = """
import resource, sys
from nnlo_opt.trials.events import TrialFailed
from nnlo_opt.trials.journal import Journal
from pathlib import Path

path, room, n_events = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
journal = Journal(path)
event = TrialFailed(time_s=1.0, trial=0, reason="x" * 50)
journal.append([event] * 2)
before = path.read_bytes()
for extra in range(room):
    # What is written stops short here, as it does where the disk is full.
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + extra, resource.RLIM_INFINITY))
    try:
        journal.append([event] * n_events)
    except OSError:
        assert path.read_bytes() == before, (extra, path.read_bytes())
    else:
        raise AssertionError(f"room for {extra} bytes was enough")
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.append([event] * n_events)
journal.close()
assert Journal(path).events == [event] * (2 + n_events)
print("sound")
"""


@pytest.mark.parametrize("n_events", [1, 3])
def test_an_append_that_finds_the_disk_full_leaves_no_half_line_and_can_be_repeated(path, n_events):
    n_bytes = n_events * len(encode_line(2, ev.TrialFailed(time_s=1.0, trial=0, reason="x" * 50)))
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path), str(n_bytes), str(n_events)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "sound\n", done.stderr


def no_room(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_where_the_disk_is_full_the_write_is_repeated_until_there_is_room(path, monkeypatch):
    journal = Journal(path)
    journal.append(EVENTS[:2])
    tried = []

    def on_full(error):
        tried.append((error.errno, path.read_bytes()))
        if len(tried) == 3:
            monkeypatch.undo()

    journal.wait_for_room(on_full)
    monkeypatch.setattr(module, "write_fully", no_room)
    journal.append(EVENTS[2:])
    journal.close()
    assert tried == [(errno.ENOSPC, b"".join(LINES[:2]))] * 3
    assert path.read_bytes() == WHOLE


def test_what_a_failed_sync_may_have_lost_is_written_again(path, monkeypatch):
    # Network file systems find out only at the sync that there is no room, also for what was written before.
    journal = Journal(path)
    journal.append(EVENTS[:2])
    journal.append(EVENTS[2:4], durable=False)

    def lose(fd):
        os.ftruncate(fd, len(b"".join(LINES[:2])) + 3)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    journal.wait_for_room(lambda error: monkeypatch.undo())
    monkeypatch.setattr(os, "fsync", lose)
    journal.append(EVENTS[4:])
    journal.close()
    assert path.read_bytes() == WHOLE


def test_an_error_that_no_waiting_mends_is_raised_at_once(path, monkeypatch):
    journal = Journal(path)
    journal.wait_for_room(lambda error: pytest.fail("waits"))

    def read_only(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(module, "write_fully", read_only)
    with pytest.raises(OSError, match="Read-only"):
        journal.append(EVENTS[:1])
    monkeypatch.undo()
    journal.append(EVENTS)
    journal.close()
    assert path.read_bytes() == WHOLE


@pytest.mark.parametrize("what", ["removed", "replaced"])
def test_a_journal_that_is_no_longer_where_it_was_is_not_written_to_in_secret(path, what):
    journal = Journal(path)
    journal.append(EVENTS[:1])
    path.unlink()
    if what == "replaced":
        path.write_bytes(b"another")
    with pytest.raises(OSError, match=r"No such file|another file has taken its place"):
        journal.append(EVENTS[1:2])
    journal.close()


def test_a_directory_that_does_not_exist_is_said(tmp_path):
    with pytest.raises(FileNotFoundError):
        Journal(tmp_path / "no" / "journal.jsonl")
