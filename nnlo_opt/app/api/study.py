"""Search from Python whose trials the caller runs: `Study.ask` gives a point, `Study.tell` takes its value."""

import os
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from nnlo_opt.app.api.arguments import SearchArguments
from nnlo_opt.app.api.optimize import N_PARALLEL, SpaceLike, search_options, space_of, warn_of_defaults
from nnlo_opt.app.api.run import SearchResult
from nnlo_opt.app.api.steering import Steering, say_waiting
from nnlo_opt.app.api.words import in_python, python_words
from nnlo_opt.app.reporting.words import counts_from_0_text
from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.start.embedded import temporary_run
from nnlo_opt.app.run.start.host import ScriptHost
from nnlo_opt.app.run.start.search import SearchSession
from nnlo_opt.app.run.start.serving_ranks import ServingRanks
from nnlo_opt.app.run.start.session import LONG_S
from nnlo_opt.app.run.workload.model_maker import ModelMaker
from nnlo_opt.app.run.workload.workload import ModuleWorkload
from nnlo_opt.core.base.errors import ConfigurationError, MisuseError, SearchWarning, TrialError
from nnlo_opt.core.base.user_code import reason_of, shortened
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.comm.transport import Transport
from nnlo_opt.core.trials.checkpoint import fold_directory
from nnlo_opt.engine.models.builders import TrialDefinition
from nnlo_opt.engine.objective.checkpoint import TrialCheckpoint, last_save
from nnlo_opt.engine.objective.epochs import EpochCount
from nnlo_opt.engine.objective.rank import RunningTrial, TrialFold
from nnlo_opt.engine.objective.values import epoch_reported, finished_fold


@dataclass(slots=True, kw_only=True)
class _Call:
    """Assignment of a trial that the caller runs in place of a rank."""

    order: msg.RunFold
    rank: Transport
    #: monotonic time of its beginning
    began_s: float
    checkpoint: TrialCheckpoint
    #: last report; None before the first
    reported: msg.EpochReported | None = None
    #: True once the coordinator has ordered it to stop
    stop_asked: bool = False
    #: as it was handed out; None before
    trial: RunningTrial | None = None


def _warn(sentence: str, place: tuple[str, int]) -> None:
    warnings.warn_explicit(python_words(sentence), SearchWarning, *place)


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
        self._ranks = [network.end(team.master_rank) for team in topology.teams]
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
        #: trials handed out to the caller that have not ended, by number
        self._calls: dict[int, _Call] = {}
        #: trials that the coordinator has assigned and the caller has not asked for yet
        self._assigned: deque[_Call] = deque()
        #: number of trials that may be under way
        self._n_wanted = 0
        self._is_closed = False
        #: True once a warning has said that a trial counts its epochs from 0
        self._has_said_count = False
        ranks = ServingRanks(network.end(0), context.preemption, checked.grace_s)
        self._session = SearchSession(checked, topology, ranks, context, script)
        try:
            self._run = self._session.begin()
        except BaseException:
            self._session.close()
            raise

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
        if not self._assigned and len(self._calls) == len(self._ranks):
            raise ConfigurationError(
                f"At most `n_parallel` trials may be under way. Received: a question with {len(self._calls)} under "
                "way; tell a value first, or raise `n_parallel`."
            )
        self._n_wanted = len(self._calls) + len(self._assigned) + (not self._assigned)
        self._turn()
        self._n_wanted = 0
        if not self._assigned:
            return None
        call = self._assigned.popleft()
        self._calls[call.order.trial] = call
        call.trial = RunningTrial(
            number=call.order.trial,
            parameters=self._space.given(call.order.point),
            checkpoint=call.checkpoint,
            fold=TrialFold(seed=self._options.seed),
            _run=self._run.directory.path,
            _report=partial(self._report, call),
        )
        return call.trial

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
        call = self._call(trial)
        try:
            end = self._end_of(call, value, error)
        except MisuseError as wrong:
            sentence = str(wrong)
            raise ConfigurationError(f"{sentence[:1].upper()}{sentence[1:]}.") from None
        call.rank.send(0, end)
        del self._calls[trial.number]
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
            self._session.end(self._run)
        finally:
            self._run.close(self._session.host)
            self._session.close()
            self._cleanup.close()

    def __iter__(self) -> Iterator[RunningTrial]:
        """Ask for one trial after another until there is none."""
        while (trial := self.ask()) is not None:
            yield trial

    def __enter__(self) -> "Study":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ in place of the ranks

    def _report(self, call: _Call, epoch: int, value: float, **figures: float) -> bool:
        self._call(call.trial)
        count = call.checkpoint.count
        call.reported = epoch_reported(call.order, self._options.comparison, count, epoch, value, figures)
        if call.reported.counts_from_0 and not self._has_said_count:
            self._has_said_count = True
            said = counts_from_0_text(call.order.trial).capitalize()
            warnings.warn(f"{said}.", SearchWarning, stacklevel=3)
        call.rank.send(0, call.reported)
        self._turn()
        return not call.stop_asked

    def _call(self, trial: RunningTrial | None) -> _Call:
        self._check_process()
        call = None if self._is_closed else next((c for c in self._calls.values() if c.trial is trial), None)
        if call is None:
            raise ConfigurationError(
                "A value must be for a trial that this study was asked for and that has not ended. Received: "
                f"{trial!r}; hand over what `ask` has returned."
            )
        return call

    def _end_of(self, call: _Call, value: object, error: BaseException | str | None) -> msg.Message:
        """Return the message by which a rank would end the trial."""
        assignment, train_s = call.order.assignment, time.monotonic() - call.began_s
        if error is not None:
            reason = reason_of(error) if isinstance(error, BaseException) else shortened(str(error))
            return msg.FoldFailed(assignment=assignment, reason=reason)
        try:
            comparison = self._options.comparison
            n_epochs = call.checkpoint.n_epochs if call.reported is None else call.reported.epoch
            finished = finished_fold(comparison, call.reported, assignment, value, n_epochs=n_epochs, train_s=train_s)
        except MisuseError:
            raise
        except TrialError as failure:
            return msg.FoldFailed(assignment=assignment, reason=reason_of(failure))
        return msg.FoldStopped(assignment=assignment) if call.stop_asked else finished

    def _turn(self) -> None:
        """Let the coordinator do all that there is to do."""
        n_idle = 0
        # Twice: the search answers at the second look.
        while n_idle < 2 and not self._run.coordinator.finished_because:
            n_idle = 0 if self._session.turn(self._run) else n_idle + 1
            for rank in self._ranks:
                while (received := rank.poll()) is not None:
                    self._take(received.message, rank)
        if self._run.coordinator.finished_because:
            self.close()

    def _take(self, message: msg.Message, rank: Transport) -> None:
        if isinstance(message, msg.RunFold):
            folder = fold_directory(self._run.directory.path, message.trial, message.fold)
            saved = last_save(folder)
            count = EpochCount(message.first if saved is None else saved.first)
            checkpoint = TrialCheckpoint(_directory=folder, _last=saved, count=count)
            began_s = time.monotonic()
            self._assigned.append(_Call(order=message, rank=rank, checkpoint=checkpoint, began_s=began_s))
            rank.send(0, msg.FoldStarted(assignment=message.assignment, epoch=checkpoint.n_epochs))
        under_way = [*self._calls.values(), *self._assigned]
        call = next((c for c in under_way if c.order.assignment == getattr(message, "assignment", None)), None)
        if call is not None and isinstance(message, msg.StopFold):
            call.stop_asked = True
        elif call is not None and isinstance(message, msg.PreemptFold):
            rank.send(0, msg.FoldStopped(assignment=message.assignment))
