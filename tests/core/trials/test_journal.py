import errno
import json
import os
import re
from contextlib import closing

import pytest

from nnlo_opt.core.base.errors import JournalError
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials import journal as module
from nnlo_opt.core.trials.journal import Journal, decode_line, encode_line, load_events, read_events
from nnlo_opt.core.trials.sync_mark import MARK_NAME, Mark, SyncMark, read_mark
from tests.helpers.launcher import python
from tests.helpers.stories import lines_of

EVENTS = [
    ev.RunStarted(time_s=0.0, unix_s=1.5e9, n_ranks=3, n_blocks=1, identity={"seed": 0, "x": [1, None]}),
    ev.TrialSuggested(time_s=0.25, trial=0, point={"n": 3, "rate": 1e-3, "text": 'snow ☃ " \\ \n'}),
    ev.FoldAssigned(time_s=0.25, assignment=0, trial=0, fold=0, attempt=1, block=1, team=0, n_ranks=2),
    ev.FoldBegan(time_s=0.5, assignment=0),
    ev.EpochEnded(time_s=0.75, assignment=0, epoch=1, metrics={"loss": 0.1}),
    ev.AssignmentFinished(time_s=1.0, assignment=0, figure_of_merit=0.1, metrics={}, n_epochs=1, train_s=0.5),
    ev.TrialCompleted(time_s=1.0, trial=0, figure_of_merit=0.1, figure_of_merit_std=0.0),
]
#: identity of every run that begins in a test
RUN = "0123456789abcdef"
LINES = [encode_line(seq, event, RUN) for seq, event in enumerate(EVENTS)]
WHOLE = b"".join(LINES)


@pytest.fixture(autouse=True)
def _the_same_identity(monkeypatch):
    monkeypatch.setattr(module.secrets, "token_hex", lambda n: RUN)


def reopen(path):
    journal = Journal(path)
    journal.close()
    return journal.events


@pytest.fixture
def path(tmp_path):
    return tmp_path / "journal.jsonl"


@pytest.fixture
def journal(path):
    """A new journal, closed at the end."""
    with closing(Journal(path)) as journal:
        yield journal


def set_mark(path, n_bytes, run=RUN):
    mark = SyncMark(SafePath.of(path))
    mark.set(n_bytes, run)
    mark.close()


def test_a_line_is_json_that_begins_with_its_number_and_checksum():
    for seq, line in enumerate(LINES):
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        values = json.loads(line)
        assert list(values)[:4] == (["seq", "crc", "event", "time_s"] if seq else ["seq", "crc", "run", "event"])
        assert values["seq"] == seq
        assert decode_line(seq, line[:-1], RUN) == EVENTS[seq]


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


def test_what_was_appended_is_there_when_it_is_opened_again(path, journal):
    assert journal.events == []
    journal.append(EVENTS[:2])
    journal.append(EVENTS[2:4], durable=False)
    journal.append([])
    journal = Journal(path)
    assert journal.events == EVENTS[:4]
    journal.append(EVENTS[4:])
    journal.close()
    assert path.read_bytes() == WHOLE
    assert reopen(path) == EVENTS


def test_every_append_is_in_the_file_when_it_returns(path, journal):
    for n, event in enumerate(EVENTS, start=1):
        journal.append([event], durable=n % 2 == 0)
        assert path.read_bytes() == b"".join(LINES[:n])


@pytest.mark.many
@pytest.mark.parametrize("n_lines", [1, 3, len(LINES)], ids=lambda n: f"a write of {n} lines")
def test_a_tail_torn_at_any_byte_is_cut_and_the_journal_continues(path, n_lines):
    n_before = len(LINES) - n_lines
    start = len(b"".join(LINES[:n_before]))
    for end in range(start, len(WHOLE)):
        path.write_bytes(WHOLE[:end])
        set_mark(path, start)
        n_sound = WHOLE[:end].count(b"\n")
        journal = Journal(path)
        assert journal.events == EVENTS[:n_sound]
        assert path.read_bytes() == b"".join(LINES[:n_sound])
        journal.append(EVENTS[n_sound:])
        journal.close()
        assert path.read_bytes() == WHOLE


def test_a_last_line_that_never_reached_the_disk_whole_is_cut(path):
    # A power cut may leave the length of a file without its contents.
    for last in (bytes(len(LINES[-1])), LINES[-1][:20] + bytes(len(LINES[-1]) - 21) + b"\n", bytes(4096)):
        path.write_bytes(b"".join(LINES[:-1]) + last)
        assert reopen(path) == EVENTS[:-1]
        assert path.read_bytes() == b"".join(LINES[:-1])


def test_what_was_on_the_disk_and_is_not_there_is_refused_with_its_figures(path, journal):
    journal.append(EVENTS)
    for end in range(len(WHOLE)):  # a page that never came, a file cut short, at the end of a line too
        for rest in (bytes(len(WHOLE) - end), b""):
            path.write_bytes(WHOLE[:end] + rest)
            for read in (load_events, Journal):
                with pytest.raises(JournalError, match=f" {len(WHOLE):,} that were on the disk|it does not begin"):
                    read(path)
            assert path.read_bytes() == WHOLE[:end] + rest


def test_without_a_mark_no_more_than_a_page_of_nul_bytes_is_cut(path):
    path.write_bytes(WHOLE[:700] + bytes(40_000))
    with pytest.raises(JournalError, match=f"{40_000 + 700 - len(b''.join(LINES[:4])):,} bytes of 40,700"):
        Journal(path)


def test_the_mark_follows_every_sync_and_what_is_written_without_may_be_torn(path, journal):
    for n_synced, durable in ((2, True), (2, False), (4, True)):
        journal.append(EVENTS[journal._seq : journal._seq + 1 + (journal._seq == 0)], durable=durable)
        assert read_mark(SafePath.of(path)) == Mark(len(b"".join(LINES[:n_synced])), RUN)
    journal.append(EVENTS[4:], durable=False)
    path.write_bytes(b"".join(LINES[:4]) + bytes(9000))
    journal = Journal(path)
    journal.close()
    assert (journal.events, journal.n_cut) == (EVENTS[:4], 9000)


@pytest.mark.parametrize(
    "mark", [b"", b"00000000000000000017", b"x" * 47, b"9" * 20 + b" 0123456789abcdef 00000000\n", b"\xff 1 2"]
)
def test_a_mark_that_is_not_whole_is_no_mark(path, mark):
    path.with_name(MARK_NAME).write_bytes(mark)
    path.write_bytes(WHOLE)
    assert read_mark(SafePath.of(path)) is None
    assert load_events(path) == EVENTS


def test_the_mark_of_another_journal_says_nothing(path):
    path.write_bytes(WHOLE)
    set_mark(path, 10**9, "f" * 16)
    assert reopen(path) == EVENTS
    assert read_mark(SafePath.of(path)) == Mark(len(WHOLE), RUN)


def test_a_journal_that_lost_all_its_bytes_is_not_a_new_run(path):
    set_mark(path, len(WHOLE))
    path.touch()
    with pytest.raises(JournalError, match="0 bytes are sound"):
        Journal(path)


def test_a_line_of_another_run_is_refused_whatever_its_number():
    for seq, event in enumerate(EVENTS):
        for run in ("", "f" * 16):
            lines = [*LINES[:seq], encode_line(seq, event, run), *LINES[seq + 1 :]]
            assert is_refused(b"".join([*lines, encode_line(len(LINES), EVENTS[-1], RUN)]))


def test_a_journal_of_an_older_version_names_no_run_and_continues_without_a_name(path):
    old = b"".join(lines_of(EVENTS[:4]))
    path.write_bytes(old)
    journal = Journal(path)
    assert journal.events == EVENTS[:4]
    journal.append(EVENTS[4:])
    journal.close()
    assert path.read_bytes() == b"".join(lines_of(EVENTS))
    assert reopen(path) == EVENTS


def is_refused(data):
    """Whether these bytes are said to be damaged, and what to do about it."""
    try:
        read_events(data, "journal.jsonl")
    except JournalError as error:
        remedy = "restore the file from a copy, keep its sound part by `nnlo-opt repair"
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
    body = EVENTS[-1].to_json().replace("TrialCompleted", "TrialPromoted!").encode()
    data = WHOLE + module._begin(len(LINES), body, RUN) + body[1:] + b"\n"
    path.write_bytes(data)
    with pytest.raises(JournalError, match="TrialPromoted"):
        Journal(path)
    assert path.read_bytes() == data


def test_a_file_that_is_something_else_is_refused():
    others = [b"a,b\n1,2\n", b"hello", b"hello\n", b"\n", b"{}\n", b"\n\n", b"{}\n{}\n", b"\x89PNG\r\n\x1a\n" * 9]
    for data in [*others, bytes(100) + WHOLE]:
        assert is_refused(data)


def test_reading_says_how_many_bytes_are_sound():
    assert read_events(b"", "j") == ([], 0)
    assert read_events(WHOLE, "j") == (EVENTS, len(WHOLE))
    assert read_events(WHOLE + b'{"seq":', "j") == (EVENTS, len(WHOLE))


def test_an_event_that_may_not_be_written_leaves_the_journal_as_it_was(path, journal):
    journal.append(EVENTS[:1])
    bad = ev.TrialCompleted(time_s=0.0, trial=0, figure_of_merit=float("nan"), figure_of_merit_std=0.0)
    with pytest.raises(ValueError, match="JSON compliant"):
        journal.append([EVENTS[1], bad])
    assert path.read_bytes() == LINES[0]
    journal.append(EVENTS[1:])
    assert path.read_bytes() == WHOLE


FULL_DISK = """
import resource, sys
from nnlo_opt.core.trials.events import RunStarted, TrialFailed
from nnlo_opt.core.trials.journal import Journal
from pathlib import Path

START = RunStarted(time_s=0.0, unix_s=0.0, n_ranks=1, n_blocks=1, identity={})
path, room, n_events = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
journal = Journal(path)
event = TrialFailed(time_s=1.0, trial=0, reason="x" * 50)
journal.append([START, event])
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
assert Journal(path).events == [START, *[event] * (1 + n_events)]
print("sound")
"""


@pytest.mark.parametrize("n_events", [1, 3])
def test_an_append_that_finds_the_disk_full_leaves_no_half_line_and_can_be_repeated(path, n_events):
    n_bytes = n_events * len(encode_line(2, ev.TrialFailed(time_s=1.0, trial=0, reason="x" * 50)))
    done = python(FULL_DISK, path, n_bytes, n_events)
    assert done.out == "sound\n", done.err


def no_room(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_where_the_disk_is_full_the_write_is_repeated_until_there_is_room(path, journal, monkeypatch):
    journal.append(EVENTS[:2])
    tried = []

    def on_full(error):
        tried.append((error.errno, path.read_bytes()))
        if len(tried) == 3:
            monkeypatch.undo()

    journal.wait_for_room(on_full)
    monkeypatch.setattr(module, "write_fully", no_room)
    journal.append(EVENTS[2:])
    assert tried == [(errno.ENOSPC, b"".join(LINES[:2]))] * 3
    assert path.read_bytes() == WHOLE


def test_what_a_failed_sync_may_have_lost_is_written_again(path, journal, monkeypatch):
    # Network file systems find out only at the sync that there is no room, also for what was written before.
    journal.append(EVENTS[:2])
    journal.append(EVENTS[2:4], durable=False)

    def lose(fd):
        os.ftruncate(fd, len(b"".join(LINES[:2])) + 3)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    journal.wait_for_room(lambda error: monkeypatch.undo())
    monkeypatch.setattr(os, "fsync", lose)
    journal.append(EVENTS[4:])
    assert path.read_bytes() == WHOLE


def test_an_error_that_no_waiting_mends_is_raised_at_once(path, journal, monkeypatch):
    journal.wait_for_room(lambda error: pytest.fail("waits"))

    def read_only(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(module, "write_fully", read_only)
    with pytest.raises(OSError, match="Read-only"):
        journal.append(EVENTS[:1])
    monkeypatch.undo()
    journal.append(EVENTS)
    assert path.read_bytes() == WHOLE


@pytest.mark.parametrize("what", ["removed", "replaced"])
def test_a_journal_that_is_no_longer_where_it_was_is_not_written_to_in_secret(path, journal, what):
    journal.append(EVENTS[:1])
    path.unlink()
    if what == "replaced":
        path.write_bytes(b"another")
    with pytest.raises(OSError, match=r"No such file|another file has taken its place"):
        journal.append(EVENTS[1:2])


def test_a_directory_that_does_not_exist_is_said(tmp_path):
    with pytest.raises(FileNotFoundError):
        Journal(tmp_path / "no" / "journal.jsonl")
