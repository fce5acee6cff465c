"""Search from Python whose trials the caller runs: `Study.ask` gives a point, `Study.tell` takes its value."""

import os
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from nnlo_opt.app.api.arguments import SearchArguments
from nnlo_opt.app.api.door import in_python
from nnlo_opt.app.api.optimize import N_PARALLEL, SpaceLike, search_options, space_of, warn_of_defaults
from nnlo_opt.app.api.run import SearchResult
from nnlo_opt.app.api.steering import Steering, say_waiting
from nnlo_opt.app.reporting.words import counts_from_0_text
from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.start.coordinate import LONG_S
from nnlo_opt.app.run.start.embedded import temporary_run
from nnlo_opt.app.run.start.host import ScriptHost
from nnlo_opt.app.run.start.one_start import Start
from nnlo_opt.app.run.start.search import OptimizationDriver
from nnlo_opt.app.run.start.serving_ranks import ServingRanks
from nnlo_opt.app.run.workload.model_maker import ModelMaker
from nnlo_opt.app.run.workload.workload import ModuleWorkload
from nnlo_opt.core.base.clock import SystemClock
from nnlo_opt.core.base.errors import ConfigurationError, MisuseError, SearchWarning
from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.engine.models.builders import TrialDefinition
from nnlo_opt.engine.objective.asked import AskedRank
from nnlo_opt.engine.objective.rank import RunningTrial


def _warn(sentence: str, place: tuple[str, int]) -> None:
    warnings.warn_explicit(sentence, SearchWarning, *place)


class Study(Steering):
    """Search whose trials the caller runs, in this process; each rank of MPI has a study of its own.

    >>> with nnlo_opt.Study({"x": Real(-5, 5)}, num_iterations=20) as study:
    ...     for trial in study:
    ...         study.tell(trial, (trial.parameters["x"] - 2) ** 2)
    >>> print(study.result)
    <SearchResult: 20 complete, best ... at {'x': ...}>

    Args:
        space, feasible: as of `nnlo_opt.optimize`.
        n_parallel: most trials that may be under way at a time, whose values the study does not have yet.
        options: options of `nnlo_opt.optimize`, without the options of models. A study with `checkpoint` is resumed by
            `opt_restore=True`; trials that were under way are then asked for again.

    Raises:
        ConfigurationError: the arguments are wrong, or the run is another search.
    """

    @in_python()
    def __init__(
        self,
        space: SpaceLike,
        *,
        feasible: Callable[[dict[str, Any]], bool] | None = None,
        n_parallel: int = 1,
        **options: Unpack[SearchArguments],
    ) -> None:
        caller = sys._getframe(2)  # behind the decorator
        source = str(getattr(sys.modules["__main__"], "__file__", "a script"))
        checked = search_options(options, source)
        warn_of_defaults(options, None, depth=4)
        full_space = space_of(space, fixed=checked.fix, feasible=feasible)
        super().__init__(full_space, LONG_S)
        n_blocks = N_PARALLEL.read(n_parallel)
        topology = Topology.plan(1 + n_blocks, 1)
        network = LoopbackNetwork(topology.world_size)
        self._keeps_files = checked.run.name is not None
        #: removes the journal if it is temporary
        self._cleanup = ExitStack()
        if not self._keeps_files:
            checked = replace(checked, run=self._cleanup.enter_context(temporary_run()))
        self._options = checked
        definition = TrialDefinition(
            name="study",
            kind="objective",
            source=Path(source),
            functions={"objective": lambda parameters: parameters},
            function="nnlo_opt.Study",
            fingerprint="nnlo_opt.Study",
        )
        context = ProcessContext()
        workload = ModuleWorkload(checked, context, searches=True, maker=ModelMaker(checked, context, definition))
        script = ScriptHost(
            program="nnlo_opt.Study",
            space=full_space,
            findings=workload.inspect(full_space),
            n_wanted=lambda n_blocks: min(n_blocks, self._n_wanted),
            requests=self._requests,
            warn=partial(_warn, place=(caller.f_code.co_filename, caller.f_lineno)),
            waits_for=say_waiting,
        )
        #: trials handed out to the caller that have not ended, each with its rank
        self._under_way: dict[RunningTrial, AskedRank] = {}
        #: ranks with a trial that the caller has not asked for yet
        self._assigned: deque[AskedRank] = deque()
        #: number of trials that may be under way
        self._n_wanted = 0
        self._is_closed = False
        #: True once a warning has said that a trial counts its epochs from 0
        self._has_said_count = False
        ranks = ServingRanks(network.end(0), context.preemption, checked.grace_s)
        self._start = Start(OptimizationDriver(checked, topology, ranks, context, script))
        try:
            self._run = self._start.begin()
        except BaseException:
            self._start.close()
            raise
        run, comparison, clock = self._run.directory.path, checked.comparison, SystemClock()
        self._ranks = [AskedRank(network.end(team.master_rank), run, comparison, clock) for team in topology.teams]

    def ask(self) -> RunningTrial | None:
        """Return the next trial; None if the search is over, or needs a value first.

        >>> with nnlo_opt.Study({"x": Real(0, 1)}, num_iterations=1) as study:
        ...     trial = study.ask()
        ...     study.tell(trial, trial.parameters["x"])
        ...     print(study.ask())
        None

        Raises:
            ConfigurationError: `n_parallel` trials are under way, or this process was forked from the study's one.
        """
        self._check_process()
        if self._is_closed:
            return None
        if not self._assigned and len(self._under_way) == len(self._ranks):
            raise ConfigurationError(
                f"At most `n_parallel` trials may be under way. Received: a question with {len(self._under_way)} under "
                "way; tell a value first, or raise `n_parallel`."
            )
        self._n_wanted = len(self._under_way) + len(self._assigned) + (not self._assigned)
        self._turn()
        self._n_wanted = 0
        if not self._assigned:
            return None
        rank = self._assigned.popleft()

        def report(epoch: int, value: float, **figures: float) -> bool:
            return self._report(trial, epoch, value, figures)

        trial = rank.trial(self._space, self._options.seed, report)
        self._under_way[trial] = rank
        return trial

    @in_python()
    def tell(
        self,
        trial: RunningTrial,
        value: float | Mapping[str, float] | None = None,
        *,
        error: BaseException | str | None = None,
    ) -> None:
        """End a trial.

        Args:
            trial: as `ask` returned it.
            value: figure of merit; with several objectives the values by name. A value that is not finite fails the
                trial.
            error: reason, or exception, by which the trial has failed.

        >>> with nnlo_opt.Study({"x": Real(0, 1)}, num_iterations=1) as study:
        ...     study.tell(study.ask(), error="the oven was cold")
        >>> study.result.trials[0].reason
        'the oven was cold'

        Raises:
            ConfigurationError: the trial is none that is under way in this study, or the value is no number; the trial
                is still under way then.
        """
        rank = self._rank_of(trial)
        try:
            rank.end(value, error)
        except MisuseError as wrong:
            sentence = str(wrong)
            raise ConfigurationError(f"{sentence[:1].upper()}{sentence[1:]}.") from None
        del self._under_way[trial]
        self._turn()

    @property
    def result(self) -> SearchResult:
        """Result so far."""
        directory = self._run.directory
        return SearchResult(directory.ledger, directory.shown if self._keeps_files else None)

    def stop(self) -> None:
        """End the study: there are no further trials, and those under way are left to a study that resumes it.

        >>> with nnlo_opt.Study({"x": Real(0, 1)}, num_iterations=9) as study:
        ...     study.stop()
        ...     print(study.ask(), study.result.ended_because)
        None stopped by `study.stop()`

        Raises:
            ConfigurationError: this process was forked from the one with the study.
        """
        self._check_process()
        super().stop()
        self._turn()

    @in_python()
    def close(self) -> None:
        """End the study, if it has not ended: trials under way are left to a study that resumes it.

        In a process that was forked from the one with the study, nothing happens.
        """
        if self._is_closed or os.getpid() != self._pid:
            return
        if not self._run.coordinator.finished_because:
            self._run.coordinator.preempt("the study was closed", LONG_S)
            self._turn()  # which comes back here
            return
        self._is_closed = True
        try:
            self._start.end()
        finally:
            self._run.close()
            self._start.close()
            self._cleanup.close()

    def __iter__(self) -> Iterator[RunningTrial]:
        """Ask for one trial after another until there is none."""
        while (trial := self.ask()) is not None:
            yield trial

    def __enter__(self) -> "Study":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ trials under way

    def _report(self, trial: RunningTrial, epoch: int, value: float, figures: Mapping[str, float]) -> bool:
        rank = self._rank_of(trial)
        if rank.report(epoch, value, figures).counts_from_0 and not self._has_said_count:
            self._has_said_count = True
            warnings.warn(f"{counts_from_0_text(trial.number).capitalize()}.", SearchWarning, stacklevel=4)
        self._turn()
        return not rank.is_stopped

    def _rank_of(self, trial: object) -> AskedRank:
        self._check_process()
        under_way = {} if self._is_closed else self._under_way
        for known, rank in under_way.items():
            if known is trial:
                return rank
        raise ConfigurationError(
            "A value must be for a trial that this study was asked for and that has not ended. Received: "
            f"{trial!r}; hand over what `ask` has returned."
        )

    @in_python()
    def _turn(self) -> None:
        """Let the coordinator do all that there is to do."""
        n_idle = 0
        # Twice: the search answers at the second look.
        while n_idle < 2 and not self._run.coordinator.finished_because:
            n_idle = 0 if self._run.turn() else n_idle + 1
            self._assigned.extend(rank for rank in self._ranks if rank.take_in())
        if self._run.coordinator.finished_because:
            self.close()
