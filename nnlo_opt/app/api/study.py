"""Ask and tell: a search whose trials the caller runs. `Study.ask` returns a point, `Study.tell` takes its value."""

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
    """Search whose trials the caller runs, in this process; under MPI each rank has a separate study.

    >>> with nnlo_opt.Study({"x": Real(-5, 5)}, num_iterations=20) as study:
    ...     for trial in study:
    ...         study.tell(trial, (trial.parameters["x"] - 2) ** 2)
    >>> print(study.result)
    <SearchResult: 20 complete, best ... at {'x': ...}>

    Args:
        space, feasible: see `nnlo_opt.optimize`.
        n_parallel: most trials that may run at a time, that is, were returned by `ask` but not told yet.
        options: options of `nnlo_opt.optimize`, without the options of models. A study with `checkpoint` is resumed by
            `opt_restore=True`; `ask` then returns its unfinished trials again.

    Raises:
        ConfigurationError: the arguments are invalid, or the run is a different search.
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
        caller = sys._getframe(2)  # above the decorator
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
        #: unfinished trials returned by `ask`, each with its rank
        self._under_way: dict[RunningTrial, AskedRank] = {}
        #: ranks with a trial that the caller has not asked for yet
        self._assigned: deque[AskedRank] = deque()
        #: number of trials that may run
        self._n_wanted = 0
        self._is_closed = False
        #: True after the warning that a trial counts its epochs from 0
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
        """Return the next trial; None if the search is over, or needs the value of a running trial first.

        >>> with nnlo_opt.Study({"x": Real(0, 1)}, num_iterations=1) as study:
        ...     trial = study.ask()
        ...     study.tell(trial, trial.parameters["x"])
        ...     print(study.ask())
        None

        Raises:
            ConfigurationError: `n_parallel` trials are unfinished, or this is a forked child of the study's process.
        """
        self._check_process()
        if self._is_closed:
            return None
        if not self._assigned and len(self._under_way) == len(self._ranks):
            raise ConfigurationError(
                "At most `n_parallel` trials may be unfinished. Received: a call of `ask` with "
                f"{len(self._under_way)} unfinished; call `tell` first, or raise `n_parallel`."
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
            trial: a trial returned by `ask`.
            value: figure of merit; with several objectives a dict of values by name. The trial fails if a value is not
                finite.
            error: reason for a failure, as text or exception.

        >>> with nnlo_opt.Study({"x": Real(0, 1)}, num_iterations=1) as study:
        ...     study.tell(study.ask(), error="the oven was cold")
        >>> study.result.trials[0].reason
        'the oven was cold'

        Raises:
            ConfigurationError: the trial is not an unfinished one of this study, or the value is not a number; the
                trial then remains unfinished.
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
        """The result so far."""
        directory = self._run.directory
        return SearchResult(directory.ledger, directory.shown if self._keeps_files else None)

    def stop(self) -> None:
        """End the study. There are no more trials; unfinished ones are continued if the study is resumed.

        >>> with nnlo_opt.Study({"x": Real(0, 1)}, num_iterations=9) as study:
        ...     study.stop()
        ...     print(study.ask(), study.result.ended_because)
        None stopped by `study.stop()`

        Raises:
            ConfigurationError: this is a forked child of the study's process.
        """
        self._check_process()
        super().stop()
        self._turn()

    @in_python()
    def close(self) -> None:
        """End the study, if it has not ended; unfinished trials are continued if the study is resumed.

        Does nothing in a forked child of the study's process.
        """
        if self._is_closed or os.getpid() != self._pid:
            return
        if not self._run.coordinator.finished_because:
            self._run.coordinator.preempt("the study was closed", LONG_S)
            self._turn()  # which calls `close` again
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

    # ------------------------------------------------------------ running trials

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
            f"`tell` takes an unfinished trial of this study. Received: {trial!r}; pass a trial that `ask` returned."
        )

    @in_python()
    def _turn(self) -> None:
        """Let the coordinator work until it has nothing to do."""
        n_idle = 0
        # Two idle steps in a row, because the search answers only at the second poll.
        while n_idle < 2 and not self._run.coordinator.finished_because:
            n_idle = 0 if self._run.turn() else n_idle + 1
            self._assigned.extend(rank for rank in self._ranks if rank.take_in())
        if self._run.coordinator.finished_because:
            self.close()
