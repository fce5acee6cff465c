"""Journal: an append-only file of checksummed lines, the single source of truth of a run.

    {"seq":0,"crc":"a81b60f4","run":"9f86d081884c7d65","event":"RunStarted","time_s":0.0,…}
    {"seq":17,"crc":"5f3a09c2","event":"TrialCompleted","time_s":84.2,…}

`seq` counts from 0 without gaps. `run` is the run's random identity, repeated at each start. `crc` is the CRC-32 of the
line without its `seq` and `crc` fields, seeded with `run` and `seq`, so lines of another run are refused. Journals of
older versions lack `run` and stay readable.

A line counts once its newline is on disk. An incomplete last write (a *torn end*, left by a crash while writing) is cut
off when the journal is opened, and reported. It can only contain what was written after the last sync
(`core.trials.sync_mark`); anything else is damage and is refused, because later lines cannot be trusted.
"""

import errno
import logging
import os
import re
import secrets
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import IO, Protocol

from nnlo_opt.core.base.errors import JournalError, UnreadableEventError
from nnlo_opt.core.base.files import sync, write_fully
from nnlo_opt.core.base.records import without_collection
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials.events import Event, RunStarted, event_from_json, events_from_json, readable_json
from nnlo_opt.core.trials.sync_mark import Mark, SyncMark, read_mark

logger = logging.getLogger(__name__)

#: bytes read and parsed together; longest line in bytes
_BLOCK_BYTES, MOST_LINE_BYTES = 2**19, 2**26
#: beginning of every line; inside a JSON string the quotes would be escaped
LINE_BEGIN = re.compile(rb'\{"seq":(\d{1,18}),"crc":"')
#: beginning of a line with a run
_START = re.compile(LINE_BEGIN.pattern + rb'[0-9a-f]{8}","run":"([0-9a-f]{16})",')
#: length of `{"run":"9f86d081884c7d65",`
_RUN_CHARS = 26
#: longest torn end if there is no sync mark: a page, which a power cut may leave as NUL bytes
MAX_TORN = 4096


def encode_line(seq: int, event: Event, run: str = "") -> bytes:
    """Return one line of the journal of `run`, newline included. Raises like `readable_json`."""
    body = readable_json(event)
    if run and isinstance(event, RunStarted):
        body = b'{"run":"%s",%s' % (run.encode(), body[1:])
    line = framed(seq, body, run)
    if len(line) > MOST_LINE_BYTES:
        raise JournalError(
            f"The journal takes lines of at most {MOST_LINE_BYTES:,} bytes. Received: {type(event).__name__} with "
            f"{len(line):,}."
        )
    return line + b"\n"


def framed(seq: int, body: bytes, seed: str) -> bytes:
    """Return line `seq` with the JSON object `body`, without newline; `body_of` checks it with the same `seed`."""
    return _begin(seq, body, seed) + body[1:]


def run_of(line: bytes) -> str:
    """Return the run's identity from the first line of a journal; empty in a journal of an older version."""
    found = _START.match(line)
    return found[2].decode() if found else ""


def decode_line(seq: int, line: bytes, run: str = "") -> Event:
    """Return the event of a line without its newline; ValueError if number, run or checksum do not match."""
    return event_from_json(body_of(seq, line, run))


def decode_lines(first: int, lines: Sequence[bytes], run: str = "") -> list[Event]:
    """Return the events of lines without their newlines, numbered from `first`. Raises ValueError or TypeError.

    All lines are parsed in one call, which takes half the time of single calls.
    """
    bodies = [body_of(seq, line, run) for seq, line in enumerate(lines, first)]
    events = events_from_json(b"[" + b",".join(bodies) + b"]")
    if len(events) != len(lines):
        raise ValueError("a line is not one object")
    return events


def body_of(seq: int, line: bytes, run: str) -> bytes:
    """Return the JSON of the event in line `seq`; ValueError if number, run or checksum do not match."""
    prefix = b'{"seq":%d,"crc":"' % seq
    end = len(prefix) + 10
    body = b"{" + line[end:]
    if line[:end] != _begin(seq, body, run):
        if not line.startswith(prefix):
            raise ValueError(f"it does not begin with sequence number {seq}")
        raise ValueError("its checksum does not match")
    return b"{" + body[_RUN_CHARS:] if body.startswith(b'{"run":"') else body


def _begin(seq: int, body: bytes, run: str) -> bytes:
    """Return the number and the checksum of a line with the JSON `body`."""
    seed = zlib.crc32(run.encode(), seq & 0xFFFFFFFF)
    return b'{"seq":%d,"crc":"%08x",' % (seq, zlib.crc32(body, seed))


def _may_be_torn(seq: int, line: bytes) -> bool:
    """Return True if this last line may be an incomplete write of line `seq`.

    That leaves the beginning of the line, or NUL bytes for missing blocks; the beginning of another line would mean
    that a newline or a whole line was lost before it.
    """
    prefix = b'{"seq":%d,"crc":"' % seq
    begins_well = prefix.startswith(line[: len(prefix)]) or b"\0" in line
    return begins_well and all(int(number) == seq for number in LINE_BEGIN.findall(line))


class LineBlocks:
    """Lines of an open journal without newlines, block by block, to limit memory.

    Args:
        file: open file at the position to read from; iteration raises ValueError at a line that is too long.
        cuts: True to split a line that is too long into (invalid) pieces instead.
    """

    def __init__(self, file: IO[bytes], *, cuts: bool = False) -> None:
        self._file = file
        self._cuts = cuts
        self._rest = bytearray()

    @property
    def rest(self) -> bytes:
        """Bytes after the last newline."""
        return bytes(self._rest)

    def __iter__(self) -> Iterator[list[bytes]]:
        while block := self._file.read(_BLOCK_BYTES):
            whole, newline, after = block.rpartition(b"\n")
            if newline:
                lines = bytes(self._rest + whole).split(b"\n")
                self._rest = bytearray(after)
                yield lines
            else:
                self._rest += block
            if len(self._rest) > MOST_LINE_BYTES:
                if not self._cuts:
                    raise ValueError(f"it has more than {MOST_LINE_BYTES:,} bytes")
                yield [self.rest]
                self._rest.clear()


@dataclass(frozen=True, slots=True)
class Content:
    """Content of a journal."""

    events: list[Event]
    #: identity of the run; empty in a journal of an older version or without events
    run: str
    #: bytes of valid lines, and of a torn end
    n_sound: int
    n_torn: int


def load_events(path: Path) -> list[Event]:
    """Return all events of the journal at `path`, without changing it. Raises like `read_journal`."""
    content = read_file(SafePath.of(path))
    if content.n_torn:
        logger.warning("The last %d bytes of `%s` are an incomplete line, and are ignored.", content.n_torn, path)
    return content.events


def read_file(path: SafePath) -> Content:
    """Return the content of the journal at `path`. Raises like `read_journal`."""
    mark = read_mark(path)  # read before the journal, because both grow
    with path.open("rb") as file:
        return read_journal(file, str(path), mark)


def read_events(data: bytes, name: str, mark: Mark | None = None) -> tuple[list[Event], int]:
    """Return all events of a journal and the number of valid bytes. Arguments and errors as for `read_journal`."""
    content = read_journal(BytesIO(data), name, mark)
    return content.events, content.n_sound


def read_journal(file: IO[bytes], name: str, mark: Mark | None = None) -> Content:
    """Return all events of a journal.

    Args:
        file: open journal, at its beginning.
        name: file name for errors.
        mark: mark of the last sync; None if unknown.

    Raises:
        JournalError: the journal is damaged before its last line, or has lost synced data.
        OSError: it cannot be read.
    """
    reader = JournalReader(name)
    with without_collection():
        reader.read(LineBlocks(file))
    events, n_sound, torn = reader.events, reader.n_sound, reader.torn
    # A mark of another run belongs to a journal that was replaced.
    if mark is not None and (mark.run == reader.run or not events):
        if n_sound < mark.n_bytes:
            raise damaged(name, len(events), f"{n_sound:,} bytes are sound of {mark.n_bytes:,} that were on the disk")
    elif len(torn) > MAX_TORN and b"\0" in torn:
        raise damaged(name, len(events), f"{len(torn):,} bytes of {n_sound + len(torn):,} cannot be read")
    return Content(events, reader.run if events else "", n_sound, len(torn))


class JournalReader:
    """Parses the lines of a journal; JournalError at a damaged one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self.run = ""
        self.events: list[Event] = []
        #: bytes of the lines of these events
        self.n_sound = 0
        #: incomplete write after them
        self.torn = b""

    def read(self, blocks: LineBlocks) -> None:
        """Parse all lines of a journal."""
        try:
            for lines in blocks:
                if self.torn:  # nothing may follow a torn end
                    raise damaged(self._name, len(self.events), "its checksum does not match")
                self._take(lines)
        except ValueError as error:
            raise damaged(self._name, len(self.events), error) from error
        if blocks.rest and (self.torn or not _may_be_torn(len(self.events), blocks.rest)):
            raise damaged(self._name, len(self.events), "its last line has no end")
        self.torn = self.torn or blocks.rest

    def _take(self, lines: list[bytes]) -> None:
        if not self.n_sound:
            self.run = run_of(lines[0])
        try:
            self.events += decode_lines(len(self.events), lines, self.run)
        except (ValueError, TypeError):
            self._take_singly(lines)
        else:
            self.n_sound += sum(map(len, lines)) + len(lines)

    def _take_singly(self, lines: list[bytes]) -> None:
        """Parse the lines before the damaged one, which is a torn end if it is the last."""
        for n, line in enumerate(lines, 1):
            try:
                self.events.append(decode_line(len(self.events), line, self.run))
            except UnreadableEventError as error:
                raise damaged(self._name, len(self.events), error) from error
            except ValueError as error:
                if n < len(lines) or not _may_be_torn(len(self.events), line + b"\n"):
                    raise damaged(self._name, len(self.events), error) from error
                self.torn = line + b"\n"
            else:
                self.n_sound += len(line) + 1


def damaged(name: str, seq: int, error: object) -> JournalError:
    """Return the error to raise for a journal whose line `seq` cannot be read."""
    return JournalError(
        f"`{name}` is damaged in line {seq + 1} ({error}), and not just cut short at the end: restore the file from a "
        f"copy, keep its sound part by `nnlo-opt repair {Path(name).parent}`, or start a new run under another name."
    )


#: errnos for missing space: on the disk, in a quota, or in a file
NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
#: called before each further attempt at a write without space; waits, or raises to give up
OnFull = Callable[[OSError], None]


class JournalWriter(Protocol):
    """Journal to which a coordinator writes."""

    @property
    def path(self) -> SafePath:
        """Its file."""

    def append(self, events: Sequence[Event], *, durable: bool = True) -> None:
        """Append events in one write, as `Journal.append`."""


class Journal:
    """Open journal of a run. Only the coordinator may write to it.

    Args:
        path: file, created if it does not exist; a torn end is cut off.
        syncs: False to never wait for the disk, even if `durable`: for simulations, whose runs are never resumed.
        may_write: called before every write; raises OSError if this process may no longer write.

    Raises:
        JournalError: the file is damaged.
    """

    def __init__(
        self, path: Path | SafePath, *, syncs: bool = True, may_write: Callable[[], None] | None = None
    ) -> None:
        self.path = path if isinstance(path, SafePath) else SafePath.of(path)
        #: None: raise if there is no space for a write
        self._on_full: OnFull | None = None
        self._may_write = may_write
        self._syncs = syncs
        existed = self.path.exists()
        self._fd = self.path.descriptor(os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            content = read_file(self.path)
            #: events in the file when it was opened
            self.events, n_sound = content.events, content.n_sound
            #: bytes of a torn end that were cut off
            self.n_cut = content.n_torn
            if self.n_cut:
                os.ftruncate(self._fd, n_sound)
            if n_sound + self.n_cut and syncs:
                os.fsync(self._fd)
            #: identity of the run; empty in a journal of an older version, or if it is never resumed
            self._run = content.run if self.events else secrets.token_hex(8) * syncs
            #: None without `syncs`
            self._mark = SyncMark(self.path) if syncs else None
            if not existed and syncs:
                sync(self.path.parent)
        except BaseException:
            os.close(self._fd)
            raise
        #: sequence number of the next line
        self._seq = len(self.events)
        #: number of bytes known to be on disk, and the lines after them; without `syncs` all bytes, and no lines
        self._n_synced, self._unsynced = n_sound, b""
        self._note_sync()
        #: True if the content of the file is unknown: a write failed, and so did `_restore`
        self._is_broken = False

    def wait_for_room(self, on_full: OnFull) -> None:
        """From now on, call `on_full` if there is no space for a write, then retry the write."""
        self._on_full = on_full

    def append(self, events: Sequence[Event], *, durable: bool = True) -> None:
        """Append `events` in one write.

        Without space on the disk, `on_full` is called before each retry.

        Args:
            events: events in their order.
            durable: return only when the events are on disk.

        Raises:
            OSError: they cannot be written; the file is unchanged.
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

        If the sync failed (a network file system may notice only then that it is full), pages written before may be
        lost, too.
        """
        os.ftruncate(self._fd, self._n_synced)
        write_fully(self._fd, self._unsynced)
        self._is_broken = False

    def _check_place(self) -> None:
        """Raise OSError if the file was removed or replaced: writes would succeed, but nobody could read them."""
        if not os.path.samestat(os.fstat(self._fd), self.path.stat()):
            raise OSError(errno.ESTALE, "another file has taken its place", str(self.path))

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
        if self._mark is not None:
            self._mark.close()
