"""What a search and a training do differently in one start of a run on world rank 0.

A training is a search of one trial, so both drivers share the checks, the journal, the resume and the end.
"""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from nnlo_opt.app.reporting.lines import ProgressLines
from nnlo_opt.app.run.options.values import Options
from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.start.host import Host
from nnlo_opt.app.run.start.serving_ranks import ServingRanks
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.clock import SystemClock
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.comm.messages import Json
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.coordinator.coordinator import Coordinator, Observer, Search
from nnlo_opt.core.coordinator.instructions import SearchPlan
from nnlo_opt.core.coordinator.state import CoordinatorState
from nnlo_opt.core.search.pruning import Pruner
from nnlo_opt.core.space.space import Space
from nnlo_opt.core.trials.identity import RunIdentity
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_directory import RunDirectory


class Ended(Frozen):
    """What a start leaves behind."""

    directory: RunDirectory
    findings: Findings
    #: the best model; None if there is none
    model_path: Path | None
    #: names of the reports that are written
    reports: tuple[str, ...]


class Driver(ABC):
    """What one start has at hand, and what its driver does differently.

    Args:
        options: of the run.
        topology: plan of all ranks.
        ranks: that serve the start.
        context: of this process.
        host: the process of the start.
    """

    #: name of the driver
    name: ClassVar[str]
    #: all trials are pieces of one training, whose checkpoints stay when a fold has ended: it may be continued
    is_one_training: ClassVar[bool] = False

    def __init__(
        self, options: Options, topology: Topology, ranks: ServingRanks, context: ProcessContext, host: Host
    ) -> None:
        #: final when the run is open: a search chooses some by model, data and journal
        self.options = options
        self.topology, self.ranks, self.context, self.host = topology, ranks, context, host
        #: name of the command for the user, and for the journal
        self.program = host.program or options.program or self.name
        self.clock = SystemClock()
        #: when this start began; a walltime counts from here
        self.began_unix_s = self.clock.unix_s()
        self.console = host.console(quiet=options.quiet)
        #: prints a line for a person
        self.say = self.console.say
        #: observations of other runs with which the search begins; known when it has been started
        self.adopted: list[dict[str, Json]] = []
        #: custom pruner; None for the one that the plan names
        self.pruner: Pruner | None = None

    # In the order in which a start calls them.

    def check_early(self) -> None:  # noqa: B027  (a training has nothing else to check)
        """Refuse wrong options before any rank imports a heavy package."""

    def load_space(self) -> Space | None:
        """Return the search space; None if it comes from the model module, or there is none."""
        return None

    def check(self, findings: Findings) -> None:  # noqa: B027  (a training works with all)
        """Raise ConfigurationError if this command cannot work with this model and these data."""

    def complete_options(self, findings: Findings, ledger: Ledger) -> None:  # noqa: B027  (a training has them all)
        """Choose what the options leave open; `ledger` holds the run so far."""

    @abstractmethod
    def greet(self, directory: RunDirectory, findings: Findings) -> None:
        """Say what is about to happen."""

    def plan_for(self, directory: RunDirectory) -> SearchPlan:
        """Return the plan of this start, given what the run has reached."""
        return self.options.plan

    @abstractmethod
    def start_search(self, findings: Findings, identity: RunIdentity, ledger: Ledger) -> Search:
        """Start the search; `identity` belongs to the first start of the run, `ledger` holds everything since."""

    def space_of(self, findings: Findings) -> Space | None:
        """Return the space of the points; None for a training, which has one point."""
        return findings.search_space

    def lines(self, state: CoordinatorState) -> Observer:
        """Return what prints the events of the journal."""
        return ProgressLines(self.say, state.plan, state.ledger, state.policy)

    def last_request(self, coordinator: Coordinator) -> None:  # noqa: B027  (a training has none)
        """Have the coordinator record what the search knows now that all trials have ended."""

    @abstractmethod
    def conclude(self, ended: Ended) -> int:
        """Say how the run has ended; return the exit code."""

    def remark(self, ended: Ended) -> None:  # noqa: B027  (a training has none)
        """Say what about the options there is to remark after the end."""

    def close(self) -> None:  # noqa: B027  (most have nothing to let go of)
        """End everything that `load_space` and `start_search` have started."""

    def _say_data(self, findings: Findings) -> None:
        """Say how many samples there are, and what there is to remark on model and data."""
        if (data := findings.data) is not None:
            folds = f", pooled and cut into {self.options.plan.n_fold} folds" * (self.options.plan.n_fold > 1)
            self.say(f"Data: {data.n_train:,} training and {data.n_validation:,} validation samples{folds}.")
        for line in findings.remarks:
            self.say(line)
