"""Open run whose coordinator is at work."""

from collections.abc import Sequence

from nnlo_opt.app.reporting.follow import Reporter
from nnlo_opt.app.run.afterwards.last_steps import leave_tables
from nnlo_opt.app.run.afterwards.mirrors import Mirror
from nnlo_opt.app.run.start.host import Host
from nnlo_opt.app.run.start.inbox import Inbox
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.coordinator.coordinator import Coordinator
from nnlo_opt.core.trials.run_directory import RunDirectory


class RunningSearch(Frozen):
    """An open run whose coordinator is at work."""

    directory: RunDirectory
    findings: Findings
    coordinator: Coordinator
    #: None if the run is not kept
    reporter: Reporter | None
    #: for other tools
    mirrors: Sequence[Mirror]
    inbox: Inbox

    def close(self, host: Host) -> None:
        """Let go of the run directory.

        A reporter that was not waited for outlives a command, and writes the tables; a script may resume the run.
        """
        self.inbox.close()
        if self.reporter is not None and not host.owns_process:
            leave_tables(self.reporter, self.directory)
        self.directory.close()
