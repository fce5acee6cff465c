"""Run directory that several jobs share: opened by all of them, its journal written by the one that leads."""

import socket
import threading
from collections.abc import Sequence
from pathlib import Path

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.files import make_directory
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.jobs.folder import FolderFiles
from nnlo_opt.core.jobs.lead import Lead
from nnlo_opt.core.jobs.succession import newest_journal
from nnlo_opt.core.jobs.terms import Terms
from nnlo_opt.core.trials.events import Event
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.owner import in_words, read_owner
from nnlo_opt.core.trials.run_directory import (
    JOURNAL_NAME,
    RunDirectory,
    RunRequest,
    check_files,
    is_shared,
)
from nnlo_opt.core.trials.run_lock import may_be_at_work, not_writable


class TermJournal:
    """Journal of the term of this job; jobs that come and go are recorded in between, by another thread.

    Args:
        lead: the term.
        path: journal of the run.
        turn: lock of the thread that lets the job work.
    """

    def __init__(self, lead: Lead, path: Path, turn: threading.RLock) -> None:
        self.path = SafePath.of(path)
        self._lead, self._turn = lead, turn

    def append(self, events: Sequence[Event], *, durable: bool = True) -> None:
        with self._turn:
            self._lead.record(*events, durable=durable)


class SharedRun(RunDirectory):
    """Run directory of this job; `ledger` and `journal` are those of its term, if it leads.

    Args:
        request: the run.

    Raises:
        ConfigurationError: the directory is not writable, or a start that shares nothing is at work in it.
    """

    def __init__(self, request: RunRequest) -> None:
        path = request.place / (request.name or "")
        super().__init__(path, request.root / path.name)
        if not is_shared(request) and may_be_at_work(path):
            raise ConfigurationError(
                "`--join` shares a run with jobs that were started with `--join`, too. Received: "
                f"`{self.shown}`, which a start without it holds{in_words(read_owner(path))}. Wait for it to end, or "
                "stop it by `nnlo-opt stop` and start it again with `--join`."
            )
        try:
            make_directory(path)
            check_files(path)
            self.files = FolderFiles(path)
        except OSError as error:
            raise not_writable(path, error) from None

    def known(self) -> Ledger:
        """Return the trials of the run, as far as they can be seen; only for checks and messages."""
        terms = Terms(self.files)
        terms.look()
        copy = newest_journal(self.files, terms.greatest)
        return Ledger() if copy is None else Ledger(copy.content.events)

    def lead(self, lead: Lead, turn: threading.RLock) -> None:
        """Write the journal of a term from now on.

        This job does not become the owner of the run (`run_lock`): the term decides who coordinates, and a predecessor
        that was killed on another machine would own the run for minutes more. Commands look at the logs of jobs.
        """
        self.journal = TermJournal(lead, self.path / JOURNAL_NAME, turn)

    @property
    def host(self) -> str:
        """Name of this machine."""
        return socket.gethostname()
