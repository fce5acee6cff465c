"""Lines that jobs exchange: what a job says in its log, and orders of a coordinator to it.

A log is a file of lines like those of the journal: number, checksum, JSON. The checksum is seeded with the name of the
file, so a line counts in its own file only. One process writes a log, and nothing is removed from it. A reader takes
complete lines: one without its end, with NUL bytes or with a wrong checksum is not there yet, nor is any after it.

An order's file names its term. What a job reports belongs to the term that it follows at this point of its log.
"""

from typing import Generic, TypeVar

from nnlo_opt.core.base.records import Count, Positive, Reader, Record, UnixSeconds
from nnlo_opt.core.jobs.files import SharedFiles
from nnlo_opt.core.trials.journal import body_of, framed


class JobLine(Record, tag_field="line"):
    """Base class of the lines that a job writes to its log."""


class Joined(JobLine):
    """The job has come: the first line; fields as in `JobJoined`. `unix_s` is for people."""

    host: str
    n_ranks: Positive
    n_teams: Positive
    unix_s: UnixSeconds
    n_blocks: Positive = 1
    block_size: Positive = 1
    n_masters: Positive = 1
    n_processes: Positive = 1


class Beat(JobLine):
    """The job is alive."""

    unix_s: UnixSeconds


class Follows(JobLine):
    """From here on the job obeys this term only; it works on nothing, and all results of earlier terms are above."""

    term: Positive


class Reported(JobLine):
    """Rank `rank` of the job sends a message (JSON) to the coordinator."""

    rank: Count
    message: str


class Resigned(JobLine):
    """The job will not write to the journal of its term any more, because it is about to leave.

    `journal_bytes`: length of this journal; 0 if the term has not begun.
    """

    term: Positive
    journal_bytes: Count = 0


class Left(JobLine):
    """The job has ended: the last line. It works on nothing, and all its results are above."""


class Order(Record, tag_field="order"):
    """Base class of the lines that the coordinator of a term writes to a job."""


class Ordered(Order):
    """The coordinator sends a message (JSON) to rank `rank` of the job."""

    rank: Count
    message: str


class Admitted(Order):
    """The job has joined; its first rank and its first team have these numbers among those of all jobs."""

    first_rank: Count
    first_team: Count


class Expelled(Order):
    """Nothing that the job does counts.

    It was silent for too long, and may join anew, under another number; or it may not, for a `reason`.
    """

    reason: str = ""


L = TypeVar("L", JobLine, Order)
#: readers of both families
JOB_LINES = Reader[JobLine](JobLine.__subclasses__())
ORDERS = Reader[Order](Order.__subclasses__())


class LogWriter:
    """Log that only this object writes.

    Args:
        files: shared files.
        name: name of the log.
        n_lines: number of lines that this process has written to it before.
    """

    def __init__(self, files: SharedFiles, name: str, n_lines: int = 0) -> None:
        self._files, self._name, self._n_lines = files, name, n_lines

    def append(self, *lines: JobLine | Order) -> None:
        """Write lines at once, and wait until they are on disk. OSError: they are not."""
        self._files.append(self._name, encoded(self._name, self._n_lines, *lines))
        self._n_lines += len(lines)


class LogReader(Generic[L]):
    """Reads a log of another job, or of this one, as far as it can be seen.

    Args:
        files: shared files.
        name: name of the log.
        kinds: lines to expect.
    """

    def __init__(self, files: SharedFiles, name: str, kinds: Reader[L]) -> None:
        self._files, self._name = files, name
        self._kinds: Reader[L] = kinds
        #: number and bytes of the complete lines so far
        self.n_lines = self._n_bytes = 0
        #: True if the last look found bytes that are no line (yet)
        self.is_stuck = False

    def new(self) -> list[L]:
        """Return the complete lines after those that were returned before."""
        lines = []
        data = self._files.read(self._name, self._n_bytes) or b""
        n_before = self._n_bytes
        for text in complete(data):
            try:
                lines.append(self._kinds.read(body_of(self.n_lines, text, self._name)))
            except (ValueError, TypeError):
                break
            self.n_lines += 1
            self._n_bytes += len(text) + 1
        self.is_stuck = self._n_bytes - n_before < len(data)
        return lines


def encoded(name: str, first: int, *lines: JobLine | Order) -> bytes:
    """Return the bytes of `lines` in the log `name`, numbered from `first`."""
    texts = (line.to_json().encode() for line in lines)
    return b"".join(framed(number, text, name) + b"\n" for number, text in enumerate(texts, first))


def complete(data: bytes) -> list[bytes]:
    """Return the lines of `data` that have an end, without it."""
    return data.split(b"\n")[:-1]
