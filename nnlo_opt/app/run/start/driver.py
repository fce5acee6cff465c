"""Base class of the drivers: the differences between a search and a training in one start of a run, on world rank 0.

A training is a search with one trial, so both drivers share the checks, the journal, the resume and the end.
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
    """Results of a finished start."""

    directory: RunDirectory
    findings: Findings
    #: file of the best model; None if there is none
    model_path: Path | None
    #: names of the reports written
    reports: tuple[str, ...]


class Driver(ABC):
    """Steps of one start, called in the order of the methods, and the objects that they share.

    Args:
        options: options of the run.
        topology: plan of all ranks.
        ranks: the ranks that serve the start.
        context: context of this process.
        host: the process of the start.
    """

    #: name of the driver
    name: ClassVar[str]
    #: True if all trials are parts of one training, which keeps its checkpoints after a fold, to be continued later
    is_one_training: ClassVar[bool] = False

    def __init__(
        self, options: Options, topology: Topology, ranks: ServingRanks, context: ProcessContext, host: Host
    ) -> None:
        #: options; final when the run is open, because a search chooses some by model, data and journal
        self.options = options
        self.topology, self.ranks, self.context, self.host = topology, ranks, context, host
        #: name of the command for the user and the journal
        self.program = host.program or options.program or self.name
        self.clock = SystemClock()
        #: beginning of this start, and of its walltime
        self.began_unix_s = self.clock.unix_s()
        self.console = host.console(quiet=options.quiet)
        #: prints a line for the user
        self.say = self.console.say
        #: observations of other runs for a warm start; known after `start_search`
        self.adopted: list[dict[str, Json]] = []
        #: custom pruner; None for the one in the plan
        self.pruner: Pruner | None = None

    # In the order in which a start calls them.

    def check_early(self) -> None:  # noqa: B027  (a training checks nothing else)
        """Refuse wrong options before any rank imports a heavy package."""

    def load_space(self) -> Space | None:
        """Return the search space; None if it is in the model module, or there is none."""
        return None

    def check(self, findings: Findings) -> None:  # noqa: B027  (a training supports all)
        """Raise ConfigurationError if this command does not support this model and these data."""

    def complete_options(self, findings: Findings, ledger: Ledger) -> None:  # noqa: B027  (a training has them all)
        """Choose options left open by the user; `ledger` has the run so far."""

    @abstractmethod
    def greet(self, directory: RunDirectory, findings: Findings) -> None:
        """Print what is about to happen."""

    def plan_for(self, directory: RunDirectory) -> SearchPlan:
        """Return the plan of this start, given the progress of the run."""
        return self.options.plan

    @abstractmethod
    def start_search(self, findings: Findings, identity: RunIdentity, ledger: Ledger) -> Search:
        """Start the search; `identity` is that of the first start of the run, `ledger` has everything since."""

    def space_of(self, findings: Findings) -> Space | None:
        """Return the space of the points; None for a training, which has one point."""
        return findings.search_space

    def lines(self, state: CoordinatorState) -> Observer:
        """Return the observer that prints the events of the journal."""
        return ProgressLines(self.say, state.plan, state.ledger, state.policy)

    def last_request(self, coordinator: Coordinator) -> None:  # noqa: B027  (a training has none)
        """Have the coordinator record the final knowledge of the search, after all trials have ended."""

    @abstractmethod
    def conclude(self, ended: Ended) -> int:
        """Print how the run has ended; return the exit code."""

    def remark(self, ended: Ended) -> None:  # noqa: B027  (a training has none)
        """Print remarks on the options after the end."""

    def close(self) -> None:  # noqa: B027  (most have nothing to release)
        """Stop everything started by `load_space` and `start_search`."""

    def _say_data(self, findings: Findings) -> None:
        """Print the number of samples, and remarks on model and data."""
        if (data := findings.data) is not None:
            folds = f", pooled and cut into {self.options.plan.n_fold} folds" * (self.options.plan.n_fold > 1)
            self.say(f"Data: {data.n_train:,} training and {data.n_validation:,} validation samples{folds}.")
        for line in findings.remarks:
            self.say(line)
