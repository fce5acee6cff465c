"""Files that jobs share: the few operations that the protocol needs, and what it relies on.

Every file has one writer for its whole life. The only lock is exclusive creation, which the server of the file system
decides; everything else may be seen late, in part, or with NUL bytes in place of what is still on its way. Folders are
never listed: a name is found by counting up from 1. Only the published journal changes hands, and decides nothing.
"""

from collections.abc import Sequence
from typing import Protocol

from nnlo_opt.core.trials.events import Event

#: most bytes of a log that one look takes in, and most bytes of a journal
MOST_NEW_BYTES, MOST_JOURNAL_BYTES = 2**24, 2**34


def term_name(term: int) -> str:
    """Return the file whose creator owns this term."""
    return f"term-{term}"


def begun_name(term: int) -> str:
    """Return the file that says whether this term has begun, or never will."""
    return f"begun-{term}"


def journal_name(term: int) -> str:
    """Return the journal of this term; only its owner writes it."""
    return f"journal-{term}/journal.jsonl"


def log_name(job: int) -> str:
    """Return the log of a job."""
    return f"job-{job}.log"


def orders_name(job: int, term: int) -> str:
    """Return the orders of this term to a job."""
    return f"orders-{job}-{term}.log"


class JournalWriter(Protocol):
    """Open journal of a term; `core.trials.journal.Journal` is one."""

    def append(self, events: Sequence[Event], *, durable: bool = True) -> None: ...

    def close(self) -> None: ...


class SharedFiles(Protocol):
    """Files in the folder of jobs; names are those of the functions above. All methods raise OSError."""

    def create(self, name: str, data: bytes) -> bool:
        """Create a file that has synced `data` from the first moment on; False if it exists.

        Of several callers one gets True: the server decides, whatever the callers see.
        """

    def append(self, name: str, data: bytes) -> None:
        """Append to a file that only this process writes, and sync it; a failure leaves the file unchanged."""

    def read(self, name: str, start: int = 0, most: int = MOST_NEW_BYTES) -> bytes | None:
        """Open a file anew and return at most `most` bytes from `start`; None if it cannot be seen (yet)."""

    def replace(self, name: str, data: bytes) -> None:
        """Write and sync a whole file under a temporary name, then rename it: readers see all of it or none."""

    def journal(self, name: str) -> JournalWriter:
        """Open a journal that `replace` has written, and that only this process writes."""

    def published(self) -> bytes | None:
        """Return the journal of the run that commands read; None without one."""

    def publish(self, name: str) -> None:
        """Let commands read the journal `name`; does nothing if they do."""
