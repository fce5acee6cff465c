"""The journal: an append-only file of checksummed lines, the one truth of a run.

    {"seq":17,"crc":"5f3a09c2","event":"TrialCompleted","time_s":84.2,…}

`seq` counts from 0 without gaps; `crc` is the CRC-32 of the line without its `seq` and `crc` fields, seeded with
`seq`. A line is in the journal when its newline is on disk. A torn last line (the process died while writing) is cut
off at open; damage anywhere before it is refused, because nothing can be said of what followed.
"""

import json
import logging
import os
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

from nnlo_opt.errors import JournalError
from nnlo_opt.files import sync_directory, write_fully
from nnlo_opt.trials.events import Event, event_from_json, event_to_json

logger = logging.getLogger(__name__)

_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False, ensure_ascii=True)
#: how every line begins; inside a JSON string the quotes would be escaped
_BEGIN = re.compile(rb'\{"seq":(\d{1,18}),"crc":"')


def encode_line(seq: int, event: Event) -> bytes:
    """One journal line, newline included."""
    body = _ENCODER.encode(event_to_json(event))
    return f'{{"seq":{seq},"crc":"{_checksum(seq, body)}",{body[1:]}\n'.encode()


def decode_line(seq: int, line: bytes) -> Event:
    """Inverse of `encode_line` (without the newline); ValueError where number or checksum do not agree."""
    prefix = f'{{"seq":{seq},"crc":"'.encode()
    if not line.startswith(prefix):
        raise ValueError(f"it does not begin with sequence number {seq}")
    start = len(prefix)
    crc, separator, rest = line[start : start + 8], line[start + 8 : start + 10], line[start + 10 :]
    body = "{" + rest.decode("ascii", "replace")
    if separator != b'",' or _checksum(seq, body) != crc.decode("ascii", "replace"):
        raise ValueError("its checksum does not agree")
    return event_from_json(json.loads(body))


def _checksum(seq: int, body: str) -> str:
    return f"{zlib.crc32(body.encode(), seq & 0xFFFFFFFF):08x}"


def _may_be_torn(seq: int, line: bytes) -> bool:
    """Whether the last line is what a write of line `seq` can leave that never reached the disk as a whole.

    That is its beginning, or NUL bytes where blocks are missing; never another line's beginning: then a newline or a
    whole line was lost before it.
    """
    prefix = f'{{"seq":{seq},"crc":"'.encode()
    begins_well = prefix.startswith(line[: len(prefix)]) or b"\0" in line
    return begins_well and all(int(number) == seq for number in _BEGIN.findall(line))


def read_events(data: bytes, name: str) -> tuple[list[Event], int]:
    """All events of a journal's bytes, and the number of sound bytes (a torn last line is not among them)."""
    events: list[Event] = []
    start = 0
    while start < len(data):
        end = data.find(b"\n", start)
        is_last = end == -1 or end == len(data) - 1
        try:
            if end == -1:
                raise ValueError("it has no end")
            events.append(decode_line(len(events), data[start:end]))
        except ValueError as error:
            if is_last and _may_be_torn(len(events), data[start:]):
                return events, start
            raise JournalError(
                f"`{name}` is damaged in line {len(events) + 1} ({error}), and not by a write that was cut short; "
                "restore the file from a copy, or start a new run under another name."
            ) from error
        start = end + 1
    return events, start


class Journal:
    """The open journal of a run; its one writer is the coordinator."""

    def __init__(self, path: Path, *, syncs: bool = True) -> None:
        """Open or create `path`, cut a torn tail, read all events.

        Without `syncs` nothing waits for the disk, `durable` or not: for simulations, whose runs nobody resumes.
        """
        self.path = path
        self._syncs = syncs
        existed = path.exists()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            data = path.read_bytes()
            #: events that were in the file when it was opened
            self.events, n_sound = read_events(data, str(path))
            if n_sound < len(data):
                logger.warning("%s: cut %d bytes of a torn last line", path, len(data) - n_sound)
                os.ftruncate(self._fd, n_sound)
                os.fsync(self._fd)
            if not existed:
                sync_directory(path.parent)
        except BaseException:
            os.close(self._fd)
            raise
        #: sequence number of the next line
        self._seq = len(self.events)

    def append(self, events: Sequence[Event], *, durable: bool = True) -> None:
        """Write `events` with one write; `durable` returns only when they are on disk."""
        lines = b"".join(encode_line(self._seq + i, event) for i, event in enumerate(events))
        end = os.fstat(self._fd).st_size
        try:
            write_fully(self._fd, lines)
        except OSError:
            os.ftruncate(self._fd, end)  # half a line would make everything after it unreadable
            raise
        self._seq += len(events)
        if durable and self._syncs:
            os.fsync(self._fd)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
