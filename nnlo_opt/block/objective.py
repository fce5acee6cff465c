"""A block that runs a user's objective: every rank calls it at the same point, block rank 0 answers.

The objective is ordinary blocking MPI code, so this is not reactive. What keeps it from hanging is that every wait of
ours, and every gated call of the communicator it is given, looks out for a rank that has raised.
"""

import logging
import math
import reprlib
import socket
import traceback
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

from nnlo_opt.block.worker import reason_of
from nnlo_opt.clock import Clock
from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.transport import Transport, wait_until
from nnlo_opt.errors import NnloError, ProtocolError, TrialError

logger = logging.getLogger(__name__)

Report = Callable[[int, float], bool]
Objective = Callable[[dict[str, Any], Any, Report], Any]

#: how long ranks may take to come back after one has raised
GRACE_S = 60.0
#: how long block rank 0 then waits to hear that the failure is in the journal
RECORDED_S = 10.0
ROOT = 0


class BlockComm(Protocol):
    """What is handed to the objective, less its MPI calls."""

    def close(self) -> None:
        """Free it. Collective."""


class StuckBlockError(NnloError):
    """A rank does not come back from an objective in which another rank raised: the job has to end."""


class _PeerRaised(TrialError):
    """Another rank of the block raised."""


class ObjectiveRank:
    """One rank of a block that runs objectives."""

    def __init__(
        self,
        orders: Transport,
        block: Transport,
        objective: Objective,
        make_comm: Callable[[Callable[[], None]], BlockComm],
        clock: Clock,
    ) -> None:
        """`make_comm(look_out)` is collective over the block; `orders` is used by block rank 0 only."""
        self._orders = orders
        self._block = block
        self._objective = objective
        self._make_comm = make_comm
        self._clock = clock
        self._is_root = block.rank == ROOT
        self._world_rank = orders.rank
        self._assignment = -1
        #: when the last call ended (at the root only); None before there was one
        self._idle_since_s: float | None = None
        #: ranks that have returned from the call under way: rank -> their message (at the root only)
        self._returned: dict[int, msg.ObjectiveReturned] = {}
        #: reports of the other ranks not yet answered (at the root only)
        self._reports: dict[int, msg.ObjectiveReport] = {}
        self._verdict: msg.ObjectiveVerdict | None = None
        self._stop_asked = False
        #: last epoch reported in this call
        self._last_epoch = 0
        #: why the call cannot succeed any more; empty while it can
        self._failure: msg.ObjectiveReturned | None = None

    def handle_order(self, message: msg.Message) -> None:
        """Take in one message of the coordinator (block rank 0)."""
        match message:
            case msg.RunFold():
                call = msg.CallObjective(assignment=message.assignment, point=message.point)
                for rank in range(1, self._block.size):
                    self._block.send(rank, call)
                self._run_at_root(call)
            case msg.StopFold():
                self._stop_asked = self._stop_asked or message.assignment == self._assignment
            case msg.FoldRecorded():
                pass  # an objective keeps no checkpoints
            case _:
                raise ProtocolError(f"A block takes no {type(message).__name__}.")

    def handle(self, message: msg.Message) -> None:
        """Take in one message of block rank 0 between two calls (other ranks)."""
        if isinstance(message, msg.CallObjective):
            _, returned = self._call(message)
            self._block.send(ROOT, returned)
        elif not isinstance(message, msg.ObjectiveFailed | msg.ObjectiveVerdict):
            raise ProtocolError(f"A rank of a block takes no {type(message).__name__} between two calls.")

    # ------------------------------------------------------------ the call, on every rank

    def _call(self, call: msg.CallObjective) -> tuple[Any, msg.ObjectiveReturned]:
        self._assignment = call.assignment
        self._returned, self._reports, self._verdict, self._failure = {}, {}, None, None
        self._last_epoch = 0
        value: Any = None
        try:
            comm = self._make_comm(self._look_out)
            value = self._objective(dict(call.point), comm, self._report)
            # All ranks must be through before the communicator goes; this is also where a rank learns of a failure.
            comm.Barrier()  # type: ignore[attr-defined]
            comm.close()
            return value, msg.ObjectiveReturned(assignment=call.assignment, world_rank=self._world_rank)
        except ProtocolError:
            raise
        except (Exception, SystemExit) as error:
            returned = msg.ObjectiveReturned(
                assignment=call.assignment,
                error=reason_of(error),
                traceback="" if isinstance(error, _PeerRaised) else "".join(traceback.format_exception(error)),
                world_rank=self._world_rank,
                host=socket.gethostname(),
            )
            logger.info("the objective raised on this rank: %s", returned.error)
            return None, returned

    def _report(self, epoch: int, value: Any) -> bool:
        """`report(epoch, value)` of the objective. Collective: every rank of the block. -> whether to go on."""
        epoch = int(epoch)
        if self._is_root:
            value = float(value)
            self._await(lambda: len(self._reports) == self._block.size - 1)
            self._reports.clear()
            if not math.isfinite(value):
                self._give_up(f"the objective reported {value} at epoch {epoch}: a finite number is expected")
            reported = msg.EpochReported(assignment=self._assignment, epoch=epoch, metrics={"value": value})
            self._orders.send(ROOT, reported)
            self._last_epoch = epoch
            self._look_for_orders()
            verdict = msg.ObjectiveVerdict(assignment=self._assignment, go_on=not self._stop_asked)
            for rank in range(1, self._block.size):
                self._block.send(rank, verdict)
            return verdict.go_on
        # Only block rank 0's value counts: other ranks may report anything, None too.
        sent = msg.ObjectiveReport(assignment=self._assignment, epoch=epoch, value=0.0)
        self._block.send(ROOT, sent)
        self._verdict = None
        self._await(lambda: self._verdict is not None)
        assert self._verdict is not None
        return self._verdict.go_on

    def _give_up(self, reason: str) -> NoReturn:
        """Fail the call on every rank, also where the objective catches what is raised here."""
        self._spread(
            msg.ObjectiveReturned(
                assignment=self._assignment, error=reason, world_rank=self._world_rank, host=socket.gethostname()
            )
        )
        raise TrialError(reason)

    def _await(self, done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        def look() -> bool:
            self._look_out()
            return done()

        return wait_until(look, timeout_s)

    def _look_out(self) -> None:
        """Take in what came from the other ranks; raise if one of them has raised."""
        self._take_in()
        if self._failure is not None:
            raise _PeerRaised(f"rank {self._failure.world_rank} raised: {self._failure.error}")

    def _take_in(self) -> None:
        while (received := self._block.poll()) is not None:
            message = received.message
            if getattr(message, "assignment", None) != self._assignment:
                continue
            match message:
                case msg.ObjectiveReturned():
                    self._returned[received.source] = message
                    if message.error and self._failure is None:
                        self._spread(message)
                case msg.ObjectiveReport():
                    self._reports[received.source] = message
                case msg.ObjectiveVerdict():
                    self._verdict = message
                case msg.ObjectiveFailed():
                    self._failure = msg.ObjectiveReturned(
                        assignment=message.assignment, error=message.reason, world_rank=message.world_rank
                    )

    def _spread(self, failure: msg.ObjectiveReturned) -> None:
        """Tell every rank that the call has failed."""
        self._failure = failure
        failed = msg.ObjectiveFailed(assignment=failure.assignment, reason=failure.error, world_rank=failure.world_rank)
        for rank in range(1, self._block.size):
            self._block.send(rank, failed)

    # ------------------------------------------------------------ block rank 0

    def _run_at_root(self, call: msg.CallObjective) -> None:
        self._stop_asked = False
        began_s = self._clock.monotonic_s()
        waited_s = None if self._idle_since_s is None else began_s - self._idle_since_s
        self._orders.send(ROOT, msg.FoldStarted(assignment=call.assignment, waited_s=waited_s))
        value, own = self._call(call)
        if own.error and self._failure is None:
            self._spread(own)
        others = self._block.size - 1

        def all_back() -> bool:
            self._take_in()
            return len(self._returned) == others

        came_back = wait_until(all_back, None if self._failure is None else GRACE_S)
        self._idle_since_s = self._clock.monotonic_s()
        if self._failure is None:
            self._orders.send(ROOT, self._result(value, self._clock.monotonic_s() - began_s))
            return
        failed = msg.FoldFailed(
            assignment=call.assignment,
            reason=self._failure.error,
            traceback=self._failure.traceback,
            world_rank=self._failure.world_rank,
            host=self._failure.host,
        )
        self._orders.send(ROOT, failed)
        if not came_back:
            recorded = wait_until(self._is_recorded, RECORDED_S)
            raise StuckBlockError(
                f"The objective raised on rank {self._failure.world_rank}, and after {GRACE_S:g} s another rank of the "
                "block still waits for it in a call that cannot be given up: "
                f"the trial is {'' if recorded else 'not yet '}recorded as failed; go on with `--opt-restore`."
            )

    def _is_recorded(self) -> bool:
        received = self._orders.poll()
        return received is not None and isinstance(received.message, msg.FoldRecorded)

    def _result(self, value: Any, train_s: float) -> msg.Message:
        self._look_for_orders()
        if self._stop_asked:
            return msg.FoldStopped(assignment=self._assignment)
        try:
            figure = float(value)
        except Exception:  # it is a user's object: a tensor of many elements raises what its framework likes
            figure = math.nan
        if not math.isfinite(figure):
            return msg.FoldFailed(
                assignment=self._assignment,
                reason=f"the objective must return a finite number; received: {reprlib.repr(value)}",
                world_rank=self._world_rank,
                host=socket.gethostname(),
            )
        return msg.FoldFinished(
            assignment=self._assignment,
            figure_of_merit=figure,
            metrics={"value": figure},
            n_epochs=self._last_epoch,
            train_s=train_s,
        )

    def _look_for_orders(self) -> None:
        while (received := self._orders.poll()) is not None:
            self.handle_order(received.message)
