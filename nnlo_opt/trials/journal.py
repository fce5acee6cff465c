"""Journal: an append-only file of checksummed lines, the one truth of a run.

    {"seq":0,"crc":"a81b60f4","run":"9f86d081884c7d65","event":"RunStarted","time_s":0.0,…}
    {"seq":17,"crc":"5f3a09c2","event":"TrialCompleted","time_s":84.2,…}

`seq` counts from 0 without gaps. `run` is the random identity of the run; each start names it. `crc` is the CRC-32 of
the line without its `seq` and `crc` fields, seeded with `run` and `seq`, so a line of another run is not accepted.
Journals of older versions name no run, and stay readable.

A line is in the journal when its newline is on disk. A torn end (the process or the machine died while writing) is cut
off at open, and the cut is reported. It can hold only what was written after the last sync (`trials.sync_mark`);
anything else is damage and is refused, because nothing can be said about the lines after it.
"""

import errno
import logging
import os
import re
import secrets
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from nnlo_opt.errors import JournalError
from nnlo_opt.files import sync, write_fully
from nnlo_opt.records import without_collection
from nnlo_opt.safe_path import MOST_BYTES, SafePath
from nnlo_opt.trials.events import Event, RunStarted, event_from_json, events_from_json
from nnlo_opt.trials.sync_mark import Mark, SyncMark, read_mark

logger = logging.getLogger(__name__)

#: number of lines whose checksums are compared, and which are then parsed, together
BATCH_LINES = 1000
#: beginning of every line; inside a JSON string the quotes would be escaped
LINE_BEGIN = re.compile(rb'\{"seq":(\d{1,18}),"crc":"')
#: beginning of a line that names its run
_START = re.compile(LINE_BEGIN.pattern + rb'[0-9a-f]{8}","run":"([0-9a-f]{16})",')
#: length of `{"run":"9f86d081884c7d65",`
_RUN_CHARS = 26
#: bytes of a torn end without the mark of a sync: a page of the file, which a power cut may leave as NUL bytes
MAX_TORN = 4096


def encode_line(seq: int, event: Event, run: str = "") -> bytes:
    """Return one line of the journal of `run`, newline included."""
    body = event.to_json().encode()
    if run and isinstance(event, RunStarted):
        body = b'{"run":"%s",%s' % (run.encode(), body[1:])
    return _begin(seq, body, run) + body[1:] + b"\n"


def run_of(line: bytes) -> str:
    """Return the identity of the run that the first line of a journal names; empty in a journal of an older version."""
    found = _START.match(line)
    return found[2].decode() if found else ""


def decode_line(seq: int, line: bytes, run: str = "") -> Event:
    """Return the event of a line without its newline; ValueError if number, run or checksum do not agree."""
    return event_from_json(_body(seq, line, run))


def decode_lines(first: int, lines: Sequence[bytes], run: str = "") -> list[Event]:
    """Return the events of lines without their newlines, which are numbered from `first`; ValueError or TypeError.

    One call of the parser serves all of them: a call for each takes twice as long.
    """
    bodies = [_body(seq, line, run) for seq, line in enumerate(lines, first)]
    events = events_from_json(b"[" + b",".join(bodies) + b"]")
    if len(events) != len(lines):
        raise ValueError("a line is not one object")
    return events


def _body(seq: int, line: bytes, run: str) -> bytes:
    """Return the JSON of the event in line `seq`; ValueError if number, run or checksum do not agree."""
    prefix = b'{"seq":%d,"crc":"' % seq
    end = len(prefix) + 10
    body = b"{" + line[end:]
    if line[:end] != _begin(seq, body, run):
        if not line.startswith(prefix):
            raise ValueError(f"it does not begin with sequence number {seq}")
        raise ValueError("its checksum does not agree")
    return b"{" + body[_RUN_CHARS:] if body.startswith(b'{"run":"') else body


def _begin(seq: int, body: bytes, run: str) -> bytes:
    """Return the number and the checksum of a line with the JSON `body`."""
    seed = zlib.crc32(run.encode(), seq & 0xFFFFFFFF)
    return b'{"seq":%d,"crc":"%08x",' % (seq, zlib.crc32(body, seed))


def _may_be_torn(seq: int, line: bytes) -> bool:
    """Return True if an incomplete write of line `seq` can have left this last line.

    It can leave the beginning of the line, or NUL bytes for missing blocks; never the beginning of another line, which
    would mean that a newline or a whole line was lost before it.
    """
    prefix = b'{"seq":%d,"crc":"' % seq
    begins_well = prefix.startswith(line[: len(prefix)]) or b"\0" in line
    return begins_well and all(int(number) == seq for number in LINE_BEGIN.findall(line))


def load_events(path: Path) -> list[Event]:
    """Return all events of the journal at `path`, which stays as it is. Raises as `read_events`, or OSError."""
    file = SafePath.of(path)
    mark = read_mark(file)  # first, because both grow
    data = file.read_bytes(MOST_BYTES)
    events, n_sound = read_events(data, str(path), mark)
    if n_sound < len(data):
        logger.warning("The last %d bytes of `%s` are an incomplete line, and are not read.", len(data) - n_sound, path)
    return events


def read_events(data: bytes, name: str, mark: Mark | None = None) -> tuple[list[Event], int]:
    """Return all events of a journal with the number of its sound bytes, which leave out a torn end.

    Args:
        data: bytes of the journal.
        name: of the file, for the error.
        mark: of its last sync; None if it is not known.

    Raises:
        JournalError: the journal is damaged before its last line, or has lost what was on the disk.
    """
    run = run_of(data[:200])
    events, n_sound = _sound_lines(data, name, run)
    # A mark of another run is left over from a journal that was replaced.
    if mark is not None and (mark.run == run or not events):
        if n_sound < mark.n_bytes:
            raise _damaged(name, len(events), f"{n_sound:,} bytes are sound of {mark.n_bytes:,} that were on the disk")
    elif len(data) - n_sound > MAX_TORN and b"\0" in data[n_sound:]:
        raise _damaged(name, len(events), f"{len(data) - n_sound:,} bytes of {len(data):,} cannot be read")
    return events, n_sound


def _sound_lines(data: bytes, name: str, run: str) -> tuple[list[Event], int]:
    """Return the events before a torn last line, with the number of their bytes; JournalError if one is damaged."""
    lines = data.split(b"\n")
    # Nothing should follow the last newline; before it, every line but the last must be sound.
    torn = lines.pop()
    events: list[Event] = []
    with without_collection():
        for first in range(0, len(lines), BATCH_LINES):
            try:
                events += decode_lines(first, lines[first : first + BATCH_LINES], run)
            except (ValueError, TypeError):
                break
    for seq in range(len(events), len(lines)):  # one by one, to find the damaged one
        try:
            events.append(decode_line(seq, lines[seq], run))
        except ValueError as error:
            if seq == len(lines) - 1 and not torn and _may_be_torn(seq, lines[seq] + b"\n"):
                return events, len(data) - len(lines[seq]) - 1
            raise _damaged(name, seq, error) from error
    if torn and not _may_be_torn(len(events), torn):
        raise _damaged(name, len(events), "it has no end")
    return events, len(data) - len(torn)


def _damaged(name: str, seq: int, error: object) -> JournalError:
    return JournalError(
        f"`{name}` is damaged in line {seq + 1} ({error}), and not by a write that was cut short: restore the file "
        f"from a copy, keep what is sound by `nnlo-opt repair {Path(name).parent}`, or start a new run under another "
        "name."
    )


#: errors of the operating system for missing space: on the disk, in a quota, or in a file
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: called if there is no space for a write, before each further attempt; it waits, or raises to give up
OnFull = Callable[[OSError], None]


class Journal:
    """Open journal of a run; the coordinator is its only writer.

    Args:
        path: file, created if it does not exist; a torn end is cut off.
        syncs: if False, no write waits for the disk, `durable` or not: for simulations, whose runs are never resumed.
        may_write: called before every write; raises OSError if this process may not write any more.

    Raises:
        JournalError: the file is damaged.
    """

    def __init__(self, path: Path, *, syncs: bool = True, may_write: Callable[[], None] | None = None) -> None:
        self.path = SafePath.of(path)
        #: None: a write without space raises
        self._on_full: OnFull | None = None
        self._may_write = may_write
        self._syncs = syncs
        existed = self.path.exists()
        self._fd = self.path.descriptor(os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            data = self.path.read_bytes(MOST_BYTES)
            #: events in the file when it was opened
            self.events, n_sound = read_events(data, str(path), read_mark(self.path))
            #: bytes of a torn end that were cut off
            self.n_cut = len(data) - n_sound
            if self.n_cut:
                os.ftruncate(self._fd, n_sound)
            if data and syncs:
                os.fsync(self._fd)
            #: identity of the run; empty in a journal of an older version, and in one that is never resumed
            self._run = run_of(data[:200]) if self.events else secrets.token_hex(8) * syncs
            #: None without `syncs`
            self._mark = SyncMark(self.path) if syncs else None
            if not existed and syncs:
                sync(self.path.parent)
        except BaseException:
            os.close(self._fd)
            raise
        #: sequence number of the next line
        self._seq = len(self.events)
        #: number of bytes that are known to be on disk, and the lines after them; without `syncs` all bytes, no lines
        self._n_synced, self._unsynced = n_sound, b""
        self._note_sync()
        #: True if the file may hold anything else: a write has failed, and `_restore` too
        self._is_broken = False

    def wait_for_room(self, on_full: OnFull) -> None:
        """Call `on_full` from now on if there is no space for a write, then try the write again."""
        self._on_full = on_full

    def append(self, events: Sequence[Event], *, durable: bool = True) -> None:
        """Write `events` with one write.

        Without space on the disk, `on_full` is called before the write is repeated.

        Args:
            events: in their order.
            durable: return only when they are on disk.

        Raises:
            OSError: they cannot be written; the file is as it was.
        """
        lines = b"".join(encode_line(self._seq + i, event, self._run) for i, event in enumerate(events))
        while True:
            try:
                self._write(lines, durable=durable and self._syncs)
                break
            except OSError as error:
                if self._on_full is None or error.errno not in NO_ROOM:
                    raise
                self._on_full(error)
        self._seq += len(events)

    def _write(self, lines: bytes, *, durable: bool) -> None:
        self._check_place()
        if self._may_write is not None:
            self._may_write()
        if self._is_broken:
            self._restore()
        try:
            write_fully(self._fd, lines)
            if durable:
                os.fsync(self._fd)
        except OSError:
            self._is_broken = True
            with suppress(OSError):
                self._restore()
            raise
        self._unsynced += lines
        if durable or not self._syncs:
            self._n_synced += len(self._unsynced)
            self._unsynced = b""
            self._note_sync()

    def _note_sync(self) -> None:
        if self._mark is not None:
            self._mark.set(self._n_synced, self._run)

    def _restore(self) -> None:
        """Restore the file to its content before a failed write: half a line would make later lines unreadable.

        If the sync failed (a file system of a network finds out only then that it is full), pages may be lost that were
        written before it.
        """
        os.ftruncate(self._fd, self._n_synced)
        write_fully(self._fd, self._unsynced)
        self._is_broken = False

    def _check_place(self) -> None:
        """Raise OSError if the file was removed or replaced: it could still be written to, but nobody would find it."""
        if not os.path.samestat(os.fstat(self._fd), self.path.stat()):
            raise OSError(errno.ESTALE, "another file has taken its place", str(self.path))

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
        if self._mark is not None:
            self._mark.close()
