"""Reports of a kept run, written in the process of a test: to start another one takes most of a second."""

from pathlib import Path

from nnlo_opt.app.reporting.follow import JournalFollower, Reporter
from nnlo_opt.app.reporting.page import wrote_page
from nnlo_opt.app.reporting.results import write_results
from nnlo_opt.core.trials.kept_weights import WeightKeeper
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME


class ReporterHere(Reporter):
    """Writes when it is waited for, all that the process does."""

    has_page = False

    def __init__(self, run_directory: Path) -> None:
        self._directory = run_directory

    def ask(self) -> None:
        """Do nothing: it is waited for afterwards."""

    def finish(self, timeout_s: float = 60.0, is_slow=None) -> bool:
        """Write tables and page, and remove weights that are not kept."""
        follower = JournalFollower(self._directory / JOURNAL_NAME)
        follower.read()
        write_results(self._directory, follower.ledger)
        if n_best := follower.ledger.settings.keep_weights:
            for path in WeightKeeper(self._directory).surplus(follower.ledger, n_best):
                path.remove()
        self.has_page = wrote_page(self._directory, follower.ledger)
        return True

    def end(self) -> bool:
        """Return True if it was not waited for."""
        return not self.has_page


class NoReporter(ReporterHere):
    """Writes nothing, for what is not about reports: a page takes a fifth of a second, and its imports half of one."""

    def finish(self, timeout_s: float = 60.0, is_slow=None) -> bool:
        """Write nothing."""
        self.has_page = True
        return True
