"""Rank of a block that runs a user's objective: every rank calls it at the same point, block rank 0 answers.

The objective is ordinary blocking MPI code, so this module is not reactive. A protocol prevents deadlocks in the
objective: before a collective call, before `report`, and before its return, every rank reports its place to block rank
0, and continues only when block rank 0 has seen all ranks at the same place. So no rank enters a collective call that
another rank will never make because of an error.
"""

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self, TypeAlias

from nnlo_opt.core.base.clock import Clock
from nnlo_opt.core.base.errors import LostAttemptError, MisuseError, NnloError, ProtocolError, TrialError
from nnlo_opt.core.base.files import make_directory
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.base.user_code import reason_of
from nnlo_opt.core.block.answers import PASSED_ON, Results, fold_failed
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.messages import Json
from nnlo_opt.core.comm.objective_messages import CallObjective, ObjectiveArrived, ObjectiveProceed, ObjectiveReturned
from nnlo_opt.core.comm.run_messages import OpenRun
from nnlo_opt.core.comm.transport import RanksLost, Transport, wait_until
from nnlo_opt.core.space.space import Point
from nnlo_opt.core.space.tuples import Tuples
from nnlo_opt.core.trials.attempts import ordered_directory, take_over
from nnlo_opt.core.trials.identity import ScriptFolders
from nnlo_opt.core.trials.manifest import remove_all
from nnlo_opt.core.trials.objectives import Comparison
from nnlo_opt.engine.objective.attempt import Attempt
from nnlo_opt.engine.objective.checkpoint import Save, TrialCheckpoint, last_save
from nnlo_opt.engine.objective.other_names import absence
from nnlo_opt.engine.objective.torch_group import Call
from nnlo_opt.engine.runtime.process import check_files, code_of_user, end_if_forked
from nnlo_opt.engine.runtime.streams import keeping_streams

#: seconds for ranks to return after one has raised; they may be computing, and notice it at their next call
GRACE_S = 600.0
#: seconds that block rank 0 then waits until the failure is in the journal
RECORDED_S = 10.0
ROOT = 0
#: place of a rank that has reached the end of the objective
_RETURN = "return"


#: report(epoch, value, **figures) -> False if the trial should stop
Report: TypeAlias = Callable[..., bool]
#: computes the answer from the values of all ranks
Answer: TypeAlias = Callable[[list[Json]], Json]


@dataclass(frozen=True, kw_only=True)
class TrialFold:
    """Part of the data on which a trial is validated; `seed` is the same for all folds of all trials of a run.

    >>> def objective(x, fold):
    ...     return fold.number
    >>> nnlo_opt.optimize(objective, {"x": Real(0, 1)}, num_iterations=1, n_fold=5).best.figure_of_merit
    2.0
    """

    #: from 0
    number: int = 0
    n_fold: int = 1
    seed: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class RunningTrial:
    """A running trial, for the code that computes its value.

    >>> nnlo_opt.optimize(lambda trial: trial.number, {"x": Real(0, 1)}, num_iterations=2).trials[1].figure_of_merit
    1.0

    Raises:
        AttributeError: for a name that a trial does not have, such as Optuna's `suggest_float`; the message says where
            to find the parameters.
    """

    number: int
    #: value of every parameter by name
    parameters: Point
    #: communicator of the ranks that work on the trial; None without MPI
    comm: Any = field(default=None, repr=False)
    #: saves of the trial
    checkpoint: TrialCheckpoint
    #: which part of the data it is validated on
    fold: TrialFold = TrialFold()
    _run: Path = field(repr=False)
    _report: Report = field(repr=False)
    #: `ObjectiveRank.meet` and `ObjectiveRank.is_stopped`, for our own objectives
    meet: Callable[..., Json] = field(repr=False, default=lambda name, own, answer, *_: answer([own]))
    is_stopped: Callable[[], bool] = field(repr=False, default=bool)
    #: for scripts: the folder they start in, and how block rank 0 tells the coordinator about it
    scripts: ScriptFolders = field(repr=False, default=ScriptFolders())
    tell: Callable[[msg.Message], None] = field(repr=False, default=lambda message: None)
    #: answers of the reports so far
    _answers: list[bool] = field(default_factory=list, init=False, repr=False)

    def report(self, epoch: int, value: float, **figures: float) -> bool:
        """Report a value after an epoch to the pruner; return False if the trial should stop.

        Epochs count from 1. If the first one that a trial reports or saves is 0, the run records each plus 1. After
        False, the return value of the objective is ignored. `figures`: other figures for results and report.

        Collective: every rank of the block, if the trial runs on several.

        Raises:
            TrialError: the epoch is not an integer >= 0, or a value is not a finite number; nothing is recorded.
        """
        self._answers.append(self._report(epoch, value, **figures))
        return self._answers[-1]

    def reporting_by(self, wrapped: Callable[[Report], Report]) -> Self:
        """Return the same trial with a different report function."""
        return replace(self, _report=wrapped(self._report))

    def should_prune(self) -> bool:
        """Return True if the last report asked the trial to stop: then return any value."""
        return False in self._answers[-1:]

    @cached_property
    def directory(self) -> Path:
        """The trial's folder in the run directory, which exists; temporary unless the run has a `checkpoint`."""
        folder = SafePath(self._run) / f"trials/{self.number:04d}"
        make_directory(folder)
        return Path(str(folder))

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            if name in vars(self).get("parameters", ()):
                raise AttributeError(f"a running trial has no {name!r}: take `trial.parameters[{name!r}]`")
            raise absence("running trial", name, self)


UserObjective: TypeAlias = Callable[[RunningTrial], Any]


class BlockComm(Protocol):
    """The communicator passed to the objective, without its MPI calls."""

    def close(self) -> None:
        """Free the communicator. Collective: every rank of the block."""


class Programs(Protocol):
    """Workload of a rank whose trials call the user's program."""

    def open(self, start: CallObjective) -> UserObjective:
        """Return the function that runs the program in the trial of `start`."""

    def close(self) -> None:
        """Release the resources of the last program."""


class StuckBlockError(NnloError):
    """Raised if a rank does not return from an objective after another rank raised: the job must end."""


class _CallFailed(TrialError):
    """Raised in a call that has already failed on another rank, for a known reason."""


class ObjectiveSetup(Frozen):
    """Everything needed to create an `ObjectiveRank`."""

    #: transport to the coordinator
    orders: Transport
    #: transport between the ranks of the block
    block: Transport
    programs: Programs
    #: the run of the trials
    run: OpenRun
    #: creates the communicator for one call; returns None without MPI. Collective: every rank of the block
    make_comm: "Callable[[ObjectiveRank], BlockComm | None]"
    clock: Clock
    #: lets the coordinator handle a report, on the rank that shares its process; returns False if the coordinator has
    #: failed. None on any other rank
    coordinate: Callable[[], bool] | None = None
    #: rules for comparing trials, with the names of the values that the objective returns
    comparison: Comparison = Comparison()
    #: this rank's previous object, before its team regrouped; None at first
    before: "ObjectiveRank | None" = None


class ObjectiveRank:
    """One rank of a block that runs objectives."""

    def __init__(self, setup: ObjectiveSetup) -> None:
        self._setup = setup
        self._orders, self._block, self._clock = setup.orders, setup.block, setup.clock
        self._is_root = setup.block.rank == ROOT
        self._tuples = Tuples(setup.run.with_tuples)
        self._world_rank = setup.orders.rank
        #: id of this process, to recognise children forked by the objective
        self._pid = os.getpid()
        check_files()
        #: number of the last assignment taken; -1 before the first
        self.taken: int = -1 if setup.before is None else setup.before.taken
        #: results of the finished assignments
        self.results: Results = Results() if setup.before is None else setup.before.results
        #: running or last attempt; initially a dummy with a number that no message has
        self._attempt = self._begun(CallObjective(assignment=-1, point={}), None)
        #: end of the last call (at the root only); None before the first call
        self._idle_since_s: float | None = None
        #: communicator of the last call if it failed with ranks at different places; else None
        self._comm: BlockComm | None = None
        #: assignment -> folder of saves to remove once the coordinator has recorded its end
        self._unneeded: dict[int, SafePath] = {}

    def handle_order(self, message: msg.Message) -> None:
        """Handle one message from the coordinator (block rank 0)."""
        match message:
            case msg.RunFold():
                self.taken = message.assignment
                self._run_at_root(message)
            case msg.GoOn() | msg.PauseFold() | msg.PreemptFold() | msg.StopFold():
                if message.assignment == self._attempt.order.assignment:
                    self._attempt.heard.add(type(message))
            case msg.FoldRecorded():
                self.results.forget(message.assignment)
                if (folder := self._unneeded.pop(message.assignment, None)) is not None:
                    remove_all(folder)
            case _:
                raise ProtocolError(f"A block does not accept {type(message).__name__}.")

    def handle(self, message: msg.Message) -> None:
        """Handle one message from block rank 0 between two calls (other ranks)."""
        if isinstance(message, CallObjective):
            with Call():  # report a failure to block rank 0 before it ends a torch group
                saved = None
                if message.saved:
                    place = self._folder(message) / message.saved
                    saved = Save(place=place, epoch=message.epoch, first=message.first)
                self._attempt = self._begun(message, saved)
                _, end = self._call(message)
                self._block.send(ROOT, end)
            if isinstance(end, msg.FoldFailed) and not wait_until(self._take_in, GRACE_S):
                self._give_up_on_root(end)
        elif not isinstance(message, msg.FoldFailed):
            raise ProtocolError(f"A rank of a block does not accept {type(message).__name__} between two calls.")

    def _give_up_on_root(self, failed: msg.FoldFailed) -> NoReturn:
        """Have the coordinator record the failure, then end the job, because block rank 0 does not answer."""
        self._orders.send(ROOT, failed)
        self._orders.flush(RECORDED_S)
        time.sleep(RECORDED_S)
        raise StuckBlockError(
            f"The objective raised on rank {failed.world_rank}, but block rank 0 is still in a call that could not be "
            f"ended in {GRACE_S:g} s. Add `{spelled('opt_restore', True)}` to resume."
        )

    # ------------------------------------------------------------ the call, on every rank

    def _begun(self, order: msg.RunFold | CallObjective, saved: Save | None) -> Attempt:
        return Attempt(
            order,
            saved,
            self._folder(order),
            self._setup.comparison,
            self._clock,
            _rank=self._block.rank,
            _meet=self.meet,
        )

    def _call(self, call: CallObjective) -> tuple[Any, ObjectiveReturned | msg.FoldFailed]:
        """Call the objective; return its value, and the message that it has ended on this rank."""
        if self._comm is not None:
            self._comm.close()
        try:
            self._comm = comm = self._setup.make_comm(self)
            try:
                trial = RunningTrial(
                    number=call.trial,
                    parameters=self._tuples.given(call.point),
                    comm=comm,
                    checkpoint=self._attempt.checkpoint,
                    fold=TrialFold(number=call.fold, n_fold=self._setup.run.n_fold, seed=self._setup.run.seed),
                    _run=Path(self._setup.run.directory),
                    _report=self._report,
                    meet=self.meet,
                    is_stopped=self.is_stopped,
                    scripts=self._setup.run.scripts,
                    tell=lambda message: self._orders.send(ROOT, message),
                )
                with keeping_streams(), code_of_user():
                    value = self._setup.programs.open(call)(trial)
            finally:
                self._setup.programs.close()
                check_files()
            self.meet(_RETURN)
            if comm is not None:
                comm.close()
            self._comm = None
            return value, ObjectiveReturned(assignment=call.assignment)
        except PASSED_ON:
            raise
        except BaseException as error:
            self._block.blame(error)  # a rank may have died in an unguarded call
            failed = fold_failed(call.assignment, error, self._world_rank)
            Call.clear(error)
            return None, failed.replaced(traceback="") if isinstance(error, _CallFailed) else failed

    def _report(self, epoch: Any, value: Any, **figures: Any) -> bool:
        """Report a value after an epoch; return False if the trial should stop. Collective: every rank of the block."""
        # Only block rank 0's value counts: other ranks may report anything, even None.
        return bool(self.meet("report", None, lambda _: self._pass_on(epoch, value, figures)))

    def meet(self, name: str, own: Json = None, answer: Answer = len, meanwhile: Callable[[], object] = bool) -> Json:
        """Wait until every rank is at the collective call `name`; return the answer of block rank 0.

        Collective: every rank of the block.

        Args:
            name: name of the collective call.
            own: plain data from this rank.
            answer: computes the answer on block rank 0 from the data of all ranks, in their order.
            meanwhile: called repeatedly while this rank waits.

        Raises:
            TrialError: the call of the objective has failed, or the ranks are at different places.
        """
        self.look_out()
        attempt = self._attempt
        if not self._is_root:
            attempt.proceed = None
            self._block.send(ROOT, ObjectiveArrived(assignment=attempt.order.assignment, at=name, own=own))
            self._await(lambda: attempt.proceed is not None, meanwhile)
            assert attempt.proceed is not None
            return attempt.proceed.answer
        others = range(1, self._block.size)
        self._await(lambda: len(attempt.arrived) == len(others), meanwhile)
        arrived, attempt.arrived = attempt.arrived, {}
        elsewhere = {rank: message.at for rank, message in arrived.items() if message.at != name}
        try:
            if elsewhere:
                rank, at = min(elsewhere.items())
                raise MisuseError(
                    "every rank of a block must make the same collective calls, `report` included; block rank 0 "
                    f"{_is_at(name)} while block rank {rank} {_is_at(at)}"
                )
            made = answer([own, *(arrived[rank].own for rank in others)])
        except _CallFailed:
            raise
        except (TrialError, OSError) as error:
            self._give_up(error)
        for rank in others:
            self._block.send(rank, ObjectiveProceed(assignment=attempt.order.assignment, answer=made))
        return made

    def _pass_on(self, epoch: Any, value: Any, figures: dict[str, Any]) -> bool:
        """Report to the coordinator; return False if the trial should stop."""
        attempt = self._attempt
        reported = attempt.report(epoch, value, figures)
        attempt.heard.discard(msg.GoOn)
        self._orders.send(ROOT, reported)
        if self._coordinate():
            try:
                self._look_for_orders()
                if reported.waits:
                    self._await(lambda: self._look_for_orders() or not self._coordinate())
            except RanksLost:
                if reported.waits:
                    raise  # otherwise the coordinator has died; keep the result of the call
        return attempt.goes_on()

    def _coordinate(self) -> bool:
        """Let the coordinator work if it is in this process; return False if it has failed."""
        return self._setup.coordinate is None or self._setup.coordinate()

    def is_stopped(self) -> bool:
        """Return True if the coordinator waits for the end of the call; block rank 0 checks this between reports."""
        if self._is_root and self._coordinate():
            with suppress(RanksLost):
                self._look_for_orders()
        return msg.StopFold in self._attempt.heard

    def _give_up(self, error: TrialError | OSError) -> NoReturn:
        """Fail the call on every rank, even if the objective catches the error raised here."""
        failed = msg.FoldFailed(
            assignment=self._attempt.order.assignment,
            reason=reason_of(error),
            traceback=_ends_the_search(error),
            world_rank=self._world_rank,
            host=socket.gethostname(),
            by_chance=isinstance(error, LostAttemptError),
        )
        self._spread(failed)
        raise error

    def _await(self, done: Callable[[], bool], meanwhile: Callable[[], object] = bool) -> None:
        def look() -> bool:
            self.look_out()
            return done() or bool(meanwhile() and done())  # do not call `meanwhile` if already done

        wait_until(look, transport=self._block if meanwhile is bool else None)

    def look_out(self) -> None:
        """Handle messages from the other ranks; raise if the call has failed."""
        end_if_forked(self._pid)
        self._take_in()
        if (failure := self._attempt.failure) is not None:
            raise _CallFailed(f"the call has failed on rank {failure.world_rank}: {failure.reason}")

    def _take_in(self) -> bool:
        """Handle messages from the other ranks; return True if block rank 0 knows that the call has failed."""
        attempt = self._attempt
        # After the message that a call has failed, the next call may follow: do not take it here.
        while (self._is_root or attempt.failure is None) and (received := self._block.poll()) is not None:
            message = received.message
            if getattr(message, "assignment", None) != attempt.order.assignment:
                continue
            match message:
                case ObjectiveReturned():
                    attempt.returned.add(received.source)
                case msg.FoldFailed() if not self._is_root:
                    attempt.failure = message
                case msg.FoldFailed():
                    attempt.returned.add(received.source)
                    self._take_failure(message)
                case ObjectiveArrived():
                    attempt.arrived[received.source] = message
                case ObjectiveProceed():
                    attempt.proceed = message
        return attempt.failure is not None

    def _take_failure(self, failure: msg.FoldFailed) -> None:
        """Record the failure of a rank: the first one, unless a later random one may have caused all others."""
        if self._attempt.failure is None:
            self._spread(failure)
        elif failure.by_chance and not self._attempt.failure.by_chance:
            self._attempt.failure = failure

    def _spread(self, failure: msg.FoldFailed) -> None:
        """Send every rank the failure of the call."""
        self._attempt.failure = failure
        for rank in range(1, self._block.size):
            self._block.send(rank, failure.replaced(traceback=""))

    # ------------------------------------------------------------ block rank 0

    def _folder(self, call: msg.RunFold | CallObjective) -> SafePath:
        return ordered_directory(Path(self._setup.run.directory), call)

    def _run_at_root(self, order: msg.RunFold) -> None:
        saved = take_over(Path(self._setup.run.directory), order, last_save)
        call = CallObjective(
            assignment=order.assignment,
            trial=order.trial,
            fold=order.fold,
            point=order.point,
            names=self._setup.run.parameters,
            first=order.first,
            term=order.term,
        )
        if saved is not None:
            call = call.replaced(saved=saved.place.name, epoch=saved.epoch, first=saved.first)
        for rank in range(1, self._block.size):
            self._block.send(rank, call)
        self._attempt = attempt = self._begun(order, saved)
        waited_s = None if self._idle_since_s is None else self._clock.monotonic_s() - self._idle_since_s
        n_epochs = attempt.checkpoint.n_epochs
        self._orders.send(ROOT, msg.FoldStarted(assignment=order.assignment, epoch=n_epochs, waited_s=waited_s))
        with Call() as own:
            value, end = self._call(call)
            if isinstance(end, msg.FoldFailed):
                wait_until(self._take_in, own.hears_s)
                self._take_failure(end)
        others = self._block.size - 1

        def all_back() -> bool:
            self._take_in()
            return len(attempt.returned) == others

        came_back = wait_until(all_back, None if attempt.failure is None else GRACE_S, self._block)
        self._idle_since_s = self._clock.monotonic_s()
        result = attempt.failure or attempt.end or self._result(value)
        if isinstance(result, msg.FoldFinished):
            self.results.add(order, result)
        if attempt.failure is None:
            self._look_for_orders()
            if msg.StopFold in attempt.heard:
                self.results.forget(order.assignment)
                result = msg.FoldStopped(assignment=order.assignment)
        goes_on = result.by_chance if isinstance(result, msg.FoldFailed) else msg.StopFold not in attempt.heard
        if not (goes_on or isinstance(result, msg.FoldPaused | msg.FoldFinished)):
            self._unneeded[order.assignment] = self._folder(order)
        self._orders.send(ROOT, result)
        if not came_back:
            assert attempt.failure is not None
            recorded = wait_until(self._is_recorded, RECORDED_S)
            raise StuckBlockError(
                f"The objective raised on rank {attempt.failure.world_rank}, but another rank of its block still "
                f"waits for it in a call that could not be ended in {GRACE_S:g} s. The trial is "
                f"{'' if recorded else 'not yet '}recorded as failed. Add `{spelled('opt_restore', True)}` to resume."
            )

    def _is_recorded(self) -> bool:
        received = self._orders.poll()
        return received is not None and isinstance(received.message, msg.FoldRecorded)

    def _result(self, value: Any) -> msg.Message:
        try:
            return self._attempt.finished(value)
        except PASSED_ON:
            raise
        except BaseException as error:  # the value is a user's object
            failed = fold_failed(self._attempt.order.assignment, error, self._world_rank)
            if isinstance(error, TrialError):  # ours: the message is enough
                return failed.replaced(traceback=_ends_the_search(error))
            return failed

    def _look_for_orders(self) -> bool:
        """Handle messages of the coordinator; return True if it has answered the last report, or ends the call."""
        while (received := self._orders.poll()) is not None:
            self.handle_order(received.message)
        return bool(self._attempt.heard)


def _ends_the_search(error: Exception) -> str:
    """Return the traceback to record for a failure; empty if another point may succeed."""
    return reason_of(error) if isinstance(error, MisuseError) else ""


def _is_at(name: str) -> str:
    return "has returned" if name == _RETURN else f"is in `{name}`"
