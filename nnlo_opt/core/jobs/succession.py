"""Succession: how the owner of a new term gets the journal of the one before.

The successor copies the sound lines to a new file, which begins its own journal, and nobody else ever writes to that.
The predecessor may wake up and append to its file: no later term reads it again. It may have obeyed jobs, too; what it
assigned after the copy is in no later journal, so reports about it do not count.

A term has *begun* when its journal exists, which appears whole. The journal of the greatest begun term is the true one.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

from nnlo_opt.core.base.errors import JournalError
from nnlo_opt.core.jobs.files import MOST_JOURNAL_BYTES, SharedFiles, journal_name
from nnlo_opt.core.jobs.lines import Resigned
from nnlo_opt.core.jobs.liveness import Timing
from nnlo_opt.core.trials.events import Event, TermBegan
from nnlo_opt.core.trials.journal import Content, encode_line, read_journal


@dataclass(frozen=True, slots=True)
class Copy:
    """Journal of the greatest begun term, as it can be seen."""

    #: 0 for a journal from before the first term, or none
    term: int
    content: Content
    data: bytes


def newest_journal(files: SharedFiles, below: int) -> Copy | None:
    """Return the journal of the greatest begun term below `below`; None if it cannot be read (yet)."""
    for term in range(below - 1, 0, -1):
        if (data := files.read(journal_name(term), most=MOST_JOURNAL_BYTES)) is not None:
            copy = _copy(term, data, journal_name(term))
            events = [] if copy is None else copy.content.events
            return copy if any(isinstance(e, TermBegan) and e.term == term for e in events) else None
    return _copy(0, files.published() or b"", "journal.jsonl")


def _copy(term: int, data: bytes, name: str) -> Copy | None:
    try:
        content = read_journal(BytesIO(data), name)
    except JournalError:  # NUL bytes in the middle: pages that are still on their way
        return None
    return Copy(term, content, data[: content.n_sound])


class Candidate:
    """Owner of a term that has not begun.

    Args:
        files: shared files.
        timing: times of jobs.
        term: the term.
        since_s: monotonic time after its file was created.
        resigned: how the owner of the term before has resigned; None if it has not.
    """

    def __init__(
        self, files: SharedFiles, timing: Timing, term: int, since_s: float, resigned: Resigned | None
    ) -> None:
        self._files, self._timing = files, timing
        self.term = term
        self._since_s = since_s
        #: length of the journal of the term before; 0 if its owner has not said it
        self._n_bytes = 0 if resigned is None or resigned.term != term - 1 else resigned.journal_bytes

    def journal(self, now_s: float) -> Copy | None:
        """Return the journal to begin with; None if its last lines may not be seen yet.

        What was written before this term's file was created is seen after `settle_s`, or once the journal is as long as
        its owner said when it resigned.

        Raises:
            JournalError: it cannot be read for so long that it must be damaged.
        """
        copy = newest_journal(self._files, self.term)
        waited_s = now_s - self._since_s
        if copy is None:
            if waited_s > self._timing.settle_s + self._timing.limit_s:
                raise JournalError(
                    f"Jobs of a run need a sound journal. Received: one before term {self.term} that cannot be read; "
                    "keep its sound part by `nnlo-opt repair RUN`."
                )
            return None
        is_whole = copy.term == self.term - 1 and 0 < self._n_bytes <= len(copy.data)
        return copy if is_whole or self.term == 1 or waited_s >= self._timing.settle_s else None


def begin_journal(files: SharedFiles, copy: Copy, began: TermBegan, opening: Sequence[Event]) -> list[Event]:
    """Write the journal of a new term, a copy with the events of its start; return all events."""
    run = copy.content.run or secrets.token_hex(8)
    events = [*copy.content.events, *opening, began]
    first = len(copy.content.events)
    lines = [encode_line(seq, event, run) for seq, event in enumerate(events[first:], first)]
    files.replace(journal_name(began.term), copy.data + b"".join(lines))
    return events
