"""Succession: how the owner of a new term gets the journal of the one before.

A term *begins* when its journal is there and its owner has created a file that says so. A successor creates this file
first for terms that have not begun: those never will. So it knows which term began last, however late it sees names.
It copies the sound lines of that term's journal to its own, to which nobody else ever writes. The predecessor may wake
up and append to its file: no later term reads that. It may give orders, too: what it assigned after the copy is in no
later journal, so reports about it do not count.
"""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO

from nnlo_opt.core.base.errors import JournalError
from nnlo_opt.core.jobs.files import MOST_JOURNAL_BYTES, SharedFiles, begun_name, journal_name
from nnlo_opt.core.jobs.lines import Resigned
from nnlo_opt.core.jobs.liveness import Timing, Watch
from nnlo_opt.core.trials.events import Event, TermBegan
from nnlo_opt.core.trials.journal import Content, encode_line, read_journal

#: verdicts about a term
BEGUN, VOID = b"begun\n", b"void\n"


@dataclass(frozen=True, slots=True)
class Copy:
    """Journal of a term, as it can be seen."""

    #: 0 for a journal from before the first term, or none
    term: int
    content: Content
    data: bytes


def newest_journal(files: SharedFiles, greatest: int) -> Copy | None:
    """Return the journal of the greatest term up to `greatest` that is seen to have begun; None if it is not there."""
    begun = (term for term in range(greatest, 0, -1) if files.read(begun_name(term)) == BEGUN)
    return _journal(files, next(begun, 0))


def _journal(files: SharedFiles, term: int) -> Copy | None:
    """Return the journal of a begun term; None if it cannot be read (yet)."""
    data = files.read(journal_name(term), most=MOST_JOURNAL_BYTES) if term else files.published()
    try:
        content = read_journal(BytesIO(data or b""), journal_name(term))
    except JournalError:  # NUL bytes in the middle: pages that are still on their way
        return None
    is_whole = not term or any(isinstance(event, TermBegan) and event.term == term for event in content.events)
    return Copy(term, content, (data or b"")[: content.n_sound]) if is_whole else None


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
        #: time in which the journal could not be read
        self._unread = Watch(timing)
        #: greatest term below that may have begun
        self._before = term - 1

    def journal(self, now_s: float) -> Copy | None:
        """Return the journal to begin with; None if its last lines may not be seen yet.

        Raises:
            JournalError: it cannot be read for so long that it must be damaged.
        """
        copy = _journal(self._files, self._before) if self._close_others() else None
        self._unread.look(0, now_s)
        if copy is None and self._unread.is_silent:
            raise JournalError(
                f"Jobs of a run need a sound journal. Received: one before term {self.term} that cannot be read; keep "
                "its sound part by `nnlo-opt repair RUN`."
            )
        return copy if copy is not None and self._has_last_lines(copy, now_s - self._since_s) else None

    def _close_others(self) -> bool:
        """Close the terms below that have not begun, down to one that has; False if its verdict cannot be seen yet."""
        while self._before:
            name = begun_name(self._before)
            if not self._files.create(name, VOID):
                verdict = self._files.read(name)
                if verdict != VOID:
                    return verdict == BEGUN
            self._before -= 1
        return True

    def _has_last_lines(self, copy: Copy, waited_s: float) -> bool:
        """Return True if all lines are seen that were written before this term's file was created.

        That is so after `settle_s`, or once the journal is as long as its owner said when it resigned.
        """
        is_named = copy.term == self.term - 1 and 0 < self._n_bytes <= len(copy.data)
        return is_named or not copy.term or waited_s >= self._timing.settle_s


def begin(files: SharedFiles, copy: Copy, began: TermBegan, opening: Sequence[Event]) -> list[Event] | None:
    """Begin a term with a copy of the journal and the events of a start; return all events.

    None: a successor has closed the term before.
    """
    run = copy.content.run or secrets.token_hex(8)
    events = [*copy.content.events, *opening, began]
    first = len(copy.content.events)
    lines = [encode_line(seq, event, run) for seq, event in enumerate(events[first:], first)]
    files.replace(journal_name(began.term), copy.data + b"".join(lines))
    return events if files.create(begun_name(began.term), BEGUN) else None
