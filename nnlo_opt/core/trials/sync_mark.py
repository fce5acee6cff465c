"""Mark of how many bytes of a journal are known to be on disk.

    00000000000000041300 9f86d081884c7d65 5f3a09c2

`journal.synced` has the number of synced bytes of the journal, the run, and the CRC-32 of both.

The mark is written in place after each sync of the journal, and not synced itself: that would double the cost of a
line. So after a power cut it may be older than the journal, but never newer. A journal whose valid lines end before the
mark has lost synced lines, which no interrupted write can cause.
"""

import os
import zlib
from contextlib import suppress
from dataclasses import dataclass

from nnlo_opt.core.base.safe_path import SafePath

MARK_NAME = "journal.synced"
#: in place of the identity in a run of an older version, whose journal has none
_NO_RUN = "-" * 16


@dataclass(frozen=True, slots=True)
class Mark:
    """Content of a mark."""

    #: number of bytes that were synced
    n_bytes: int
    #: identity of the run in its journal; empty for a run of an older version
    run: str


def read_mark(journal: SafePath) -> Mark | None:
    """Return the mark of a journal; None without a complete one. Read it before the journal, which grows."""
    try:
        content = journal.with_name(MARK_NAME).read_bytes()
        n_bytes, run, _ = content.split(b" ")
        mark = Mark(int(n_bytes), run.decode().strip("-"))
    except (OSError, ValueError):
        return None
    return mark if content == _content(mark) else None


def _content(mark: Mark) -> bytes:
    """Return the content of the file, with a checksum, because a crash may leave half of a write in place."""
    text = b"%020d %s" % (mark.n_bytes, (mark.run or _NO_RUN).encode())
    return b"%s %08x\n" % (text, zlib.crc32(text))


class SyncMark:
    """Mark updated by the writer of a journal; errors of writing it are ignored.

    Args:
        journal: path of the journal.
    """

    def __init__(self, journal: SafePath) -> None:
        self._fd = journal.with_name(MARK_NAME).descriptor(os.O_RDWR | os.O_CREAT)

    def set(self, n_bytes: int, run: str) -> None:
        """Record that the first `n_bytes` bytes of the journal of `run` are on disk."""
        with suppress(OSError):  # a full disk: an older mark is valid, too
            os.pwrite(self._fd, _content(Mark(n_bytes, run)), 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)
