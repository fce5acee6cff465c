"""An open run, and all that follows it."""

from collections.abc import Sequence

from nnlo_opt.coordinator.coordinator import Coordinator
from nnlo_opt.records import Value
from nnlo_opt.reporting.follow import Reporter
from nnlo_opt.run.afterwards.mirrors import Mirror
from nnlo_opt.run.start.inbox import Inbox
from nnlo_opt.run.workload.findings import Findings
from nnlo_opt.trials.run_directory import RunDirectory


class RunningSearch(Value):
    """An open run whose coordinator is at work."""

    directory: RunDirectory
    findings: Findings
    coordinator: Coordinator
    #: None in a script
    reporter: Reporter | None
    #: for other tools
    mirrors: Sequence[Mirror]
    inbox: Inbox

    def close(self) -> None:
        """Let go of the run directory."""
        self.inbox.close()
        self.directory.close()
