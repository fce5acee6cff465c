"""Open run whose coordinator is at work."""

from collections.abc import Sequence

from nnlo_opt.coordinator.coordinator import Coordinator
from nnlo_opt.records import Value
from nnlo_opt.reporting.follow import Reporter
from nnlo_opt.run.afterwards.last_steps import leave_tables
from nnlo_opt.run.afterwards.mirrors import Mirror
from nnlo_opt.run.start.host import Host
from nnlo_opt.run.start.inbox import Inbox
from nnlo_opt.run.workload.findings import Findings
from nnlo_opt.trials.run_directory import RunDirectory


class RunningSearch(Value):
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
