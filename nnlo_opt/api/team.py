"""The ranks of a communicator: what they agree on, and the loop in which they train.

Rank 0 is the master and gives the orders that a coordinator gives in a search; the others are workers. One rank alone
is both. The protocol, the master and the workers are those of `TrainingDriver`.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np

from nnlo_opt.block.answers import reason_of
from nnlo_opt.block.master.endpoints import WorkerEndpoints
from nnlo_opt.block.master.master import Master, MasterSetup
from nnlo_opt.block.master.submaster import SubMaster, SubMasterSetup
from nnlo_opt.block.task import TaskFactory
from nnlo_opt.block.worker.group import MemberSetup, WorkerGroupMember
from nnlo_opt.block.worker.worker import Memory, Worker, WorkerSetup
from nnlo_opt.clock import SystemClock
from nnlo_opt.comm import messages as msg
from nnlo_opt.comm import topology
from nnlo_opt.comm.loopback import LoopbackNetwork
from nnlo_opt.comm.run_messages import OpenRun, Shutdown
from nnlo_opt.comm.transport import Transport, wait_until
from nnlo_opt.errors import EXIT_FAILURE, EXIT_WRONG_REQUEST, ConfigurationError, NnloError, TrialError
from nnlo_opt.models.callbacks import EpochCallbacks
from nnlo_opt.objective.rank import ObjectiveRank
from nnlo_opt.run.findings import Findings
from nnlo_opt.run.placement import Endpoints
from nnlo_opt.run.server import RankServer, Regrouped, ServerSetup
from nnlo_opt.runtime.devices import GpuRequest, NodeShare, cores, pack_cores, share_node, unpack_cores
from nnlo_opt.runtime.monitor import Monitor
from nnlo_opt.training.options import TrainingOptions
from nnlo_opt.trials.checkpoint import fold_directory, load_weights

Value = TypeVar("Value")


class FailedElsewhereError(ConfigurationError):
    """Another rank has raised this, and tells it; this one only stops."""


# ---------------------------------------------------------------- what ranks agree on


class Ranks:
    """The ranks of a communicator, outside of a training. Collective but for its attributes: every rank."""

    def __init__(self, comm: Any) -> None:
        """`comm` is duplicated; None is a rank alone, without MPI."""
        alone = comm is None or comm.Get_size() == 1
        #: None where there is one rank
        self.comm = None if alone else comm.Dup()
        self.rank = 0 if self.comm is None else int(self.comm.Get_rank())
        self.size = 1 if self.comm is None else int(self.comm.Get_size())

    def split(self, color: int) -> "Ranks":
        """The ranks with the same color."""
        if self.comm is None:
            return Ranks(None)
        part = self.comm.Split(color, self.rank)
        try:
            return Ranks(part)
        finally:
            part.Free()

    def attempt(self, function: Callable[[], Value]) -> Value:
        """What `function` returns; where it raises on a rank, no rank returns."""
        value, error = None, None
        try:
            value = function()
        except Exception as raised:
            error = raised
        if self.comm is not None:
            states = np.zeros(self.size, np.int8)
            own = 0 if error is None else 1 if not isinstance(error, FailedElsewhereError) else 2
            self.comm.Allgather(np.array([own], np.int8), states)
            if (states == 1).any():
                first = int(np.argmax(states == 1))
                reason = self.share_json(None if error is None else reason_of(error), first)
                # One rank is enough to tell it.
                error = error if self.rank == first else FailedElsewhereError(reason)
        if error is not None:
            raise error
        return value  # type: ignore[return-value]

    def sum(self, vector: np.ndarray) -> np.ndarray:
        """The sum of int64 vectors of equal length."""
        if self.comm is None:
            return vector
        total = np.zeros_like(vector)
        self.comm.Allreduce(vector, total)
        return total

    def share(self, data: np.ndarray | None, root: int = 0) -> np.ndarray:
        """The vector (n,) that rank `root` has, of a type that all know: float32 here."""
        if self.comm is None:
            assert data is not None
            return data
        length = np.array([0 if data is None else len(data)], np.int64)
        self.comm.Bcast(length, root)
        buffer = np.empty(int(length[0]), np.float32) if data is None or self.rank != root else data
        self.comm.Bcast(buffer, root)
        return buffer

    def share_json(self, value: Any, root: int = 0) -> Any:
        """The plain data that rank `root` has."""
        if self.comm is None:
            return value
        mine = np.frombuffer(json.dumps(value).encode(), np.uint8) if self.rank == root else np.empty(0, np.uint8)
        length = np.array([len(mine)], np.int64)
        self.comm.Bcast(length, root)
        buffer = mine.copy() if self.rank == root else np.empty(int(length[0]), np.uint8)
        self.comm.Bcast(buffer, root)
        return json.loads(buffer.tobytes())

    def node_share(self, trainers: set[int], masters: set[int]) -> NodeShare:
        """This rank's threads and GPU, settled before a framework is imported."""
        if self.comm is None:
            packed = {0: pack_cores(cores())}
        else:
            from nnlo_opt.comm.mpi.world import World

            packed = World(self.comm).on_node(pack_cores(cores()))
        cores_of = {rank: unpack_cores(own) for rank, own in packed.items()}
        return share_node(self.rank, cores_of, trainers, masters, GpuRequest())

    def close(self) -> None:
        """Free the communicator."""
        comm, self.comm = self.comm, None
        if comm is not None:
            comm.Free()


@contextmanager
def _flushed() -> Iterator[None]:
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def abort_on_error(comm: Any) -> Callable[[], None]:
    """From now on an exception that nobody catches ends all ranks of `comm`, which else would wait for this one.

    Returns what takes that back.
    """
    before = sys.excepthook
    is_on = [True]

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if is_on[0] and isinstance(error, FailedElsewhereError):
            return
        with _flushed():
            before(kind, error, trace)
        if is_on[0]:
            comm.Abort(EXIT_WRONG_REQUEST if isinstance(error, ConfigurationError) else EXIT_FAILURE)

    def restore() -> None:
        # Another hook may stand before this one, which then only passes on.
        is_on[0] = False
        if sys.excepthook is hook:
            sys.excepthook = before

    sys.excepthook = hook
    return restore


# ---------------------------------------------------------------- training


class Team:
    """The ranks that train together: the place of this one, and its server. Collective: every rank of `ranks`."""

    def __init__(
        self,
        ranks: Ranks,
        plan: topology.Team,
        options: TrainingOptions,
        tasks: Callable[[], TaskFactory],
        monitor: Monitor | None,
    ) -> None:
        """`plan`: the roles of `ranks`; `tasks()` makes the tasks of this rank when it is to train."""
        self._ranks = ranks
        self._options = options
        self._make_tasks = tasks
        self._monitor = monitor
        #: to be set before the training
        self.callbacks: EpochCallbacks | None = None
        self.directory = Path()
        self.keeps_checkpoints = False
        #: told of every epoch, on rank 0
        self.on_epoch: Callable[[msg.EpochReported], None] = lambda reported: None
        self._own = LoopbackNetwork(2)
        #: the coordinator's end of the orders, on rank 0
        self._coordinator = self._own.end(0)
        self._transports: list[Any] = []
        self._late: list[_LateTasks] = []
        self._ends = Endpoints.of(plan, ranks.comm)
        self._orders: Transport = self._own.end(1)
        self._others = None
        if ranks.comm is not None:
            from nnlo_opt.comm.mpi.transport import MpiTransport

            self._comms = [ranks.comm.Dup(), *self._ends.comms]
            self._others = MpiTransport(self._comms[0])
            self._transports = [self._others, *self._ends.transports]
            self._orders = self._others if ranks.rank else self._orders
        self._server = RankServer(
            ServerSetup(orders=self._orders, team_ends=self._ends.transports, workload=_NoDesk(), roles=self)
        )

    # ------------------------------------------------------------ roles (`run.server.Roles`)

    def open(self, run: OpenRun) -> None:
        """Nothing is written but by roles."""

    def regroup(self) -> Regrouped:
        """A training of one's own script ends with the first rank that dies, as its other ranks may not outlive it."""
        raise NnloError("A rank has died: the training ends here; a manager that restores goes on from its checkpoint.")

    def master(self, run: OpenRun) -> Master | None:
        """The master, on rank 0."""
        end, plan = self._ends.master_end, self._ends.team
        if end is None:
            return None
        setup = MasterSetup(
            orders=self._orders,
            endpoints=WorkerEndpoints.of(end, plan),
            directory=Path(run.directory),
            options=self._options,
            clock=SystemClock(),
            writes_checkpoints=self.keeps_checkpoints,
            keeps_checkpoints=self.keeps_checkpoints,
            calls_back=bool(run.settings["calls_back"]),
        )
        return Master(setup)

    def worker(self, run: OpenRun, memory: Memory | None) -> Worker | None:
        """A worker, or the first rank of one."""
        ends = self._ends
        if not ends.is_worker:
            return None
        setup = WorkerSetup(
            block=ends.worker_end,
            tasks=self._tasks(),
            world_rank=self._ranks.rank,
            partners=ends.partners(),
            monitor=self._monitor,
            callbacks=self.callbacks,
            memory=memory,
        )
        return Worker(setup)

    def follower(self, run: OpenRun) -> WorkerGroupMember | SubMaster | None:
        """Another rank of a worker, or a sub-master."""
        ends = self._ends
        if ends.above is not None:
            setup = SubMasterSetup(
                above=ends.above,
                below=ends.worker_end,
                team=ends.team,
                options=self._options,
                world_rank=self._ranks.rank,
            )
            return SubMaster(setup)
        if ends.ring is None or not ends.is_follower:
            return None
        member = MemberSetup(
            block=ends.worker_end,
            leader=ends.leader_end,
            tasks=self._tasks(),
            world_rank=self._ranks.rank,
            together=ends.ring,
        )
        return WorkerGroupMember(member)

    def objective(self, run: OpenRun) -> ObjectiveRank | None:
        """None here."""
        return None

    def _tasks(self) -> "_LateTasks":
        self._late.append(_LateTasks(self._make_tasks))
        return self._late[-1]

    # ------------------------------------------------------------ the training

    def serve(self) -> None:
        """Train as the master says, until it is over. Every rank but 0."""
        self._server.serve()
        if self._server.is_orphaned:
            raise NnloError(
                "Rank 0 has died: the training ends here; a manager that restores goes on from its checkpoint."
            )

    def train(self, folds: list[int], *, calls_back: bool) -> list[dict[str, Any]]:
        """Train one fold after another and end the training of all ranks; -> what came of each. On rank 0.

        Each is plain data: "fold", then "error" and "traceback", or "figure_of_merit", "metrics" and "history".
        """
        opened = OpenRun(directory=str(self.directory), settings={"calls_back": calls_back})
        self._tell(opened)
        try:
            return [self._train(fold) for fold in folds]
        finally:
            self._tell(Shutdown(exit_code=0))

    def weights_of(self, fold: int) -> tuple[np.ndarray, np.ndarray]:
        """Weights and model state of a fold that has been trained. On rank 0."""
        return load_weights(fold_directory(self.directory, 0, fold))

    def close(self) -> None:
        """Let go of the models, take in what has come late, and free the communicators. Collective."""
        for tasks in self._late:
            tasks.close()
        if not self._transports:
            return
        from nnlo_opt.comm.mpi.transport import MpiTransport
        from nnlo_opt.comm.mpi.world import drain

        assert self._ranks.comm is not None
        drain(self._ranks.comm, self._transports)
        for transport in self._transports:
            MpiTransport.open_transports.remove(transport)
        self._transports = []
        for comm in self._comms:
            comm.Free()

    def _tell(self, message: msg.Message) -> None:
        self._coordinator.send(1, message)
        for rank in range(1, self._ranks.size):
            assert self._others is not None
            self._others.send(rank, message)

    def _train(self, fold: int) -> dict[str, Any]:
        self._coordinator.send(1, msg.RunFold(assignment=fold, trial=0, fold=fold, attempt=1, point={}))
        found: list[dict[str, Any]] = []

        def look() -> bool:
            received = self._coordinator.poll()
            if received is None:
                return self._server.step()
            match received.message:
                case msg.EpochReported():
                    self.on_epoch(received.message)
                case msg.FoldFinished():
                    found.append(self._result(fold, received.message))
                case msg.FoldFailed(reason=reason, traceback=trace):
                    found.append({"fold": fold, "error": reason, "traceback": trace})
            return True

        while not found:
            wait_until(look, transport=self._ends.master_end)
        self._coordinator.send(1, msg.FoldRecorded(assignment=fold))
        return found[0]

    def _result(self, fold: int, finished: msg.FoldFinished) -> dict[str, Any]:
        history = json.loads((fold_directory(self.directory, 0, fold) / "history.json").read_text())
        return {
            "fold": fold,
            "figure_of_merit": finished.figure_of_merit,
            "metrics": finished.metrics,
            "n_epochs": finished.n_epochs,
            "reason": finished.reason,
            "history": history,
        }


def check_outcome(outcome: dict[str, Any]) -> None:
    """Raise TrialError where the training of a fold has failed."""
    if "error" in outcome:
        error = TrialError(str(outcome["error"]))
        for line in str(outcome["traceback"]).splitlines()[-12:]:
            error.add_note(line)
        raise error


class _LateTasks:
    """The tasks of a rank, made when the first is wanted: a master that does not train needs none."""

    def __init__(self, make: Callable[[], TaskFactory]) -> None:
        self._make = make
        self._tasks: TaskFactory | None = None

    def open(self, start: msg.StartFold) -> Any:
        if self._tasks is None:
            self._tasks = self._make()
        return self._tasks.open(start)

    def close(self) -> None:
        if self._tasks is not None:
            self._tasks.close()


class _NoDesk:
    """Nobody asks about model and data: the script knows them."""

    def prepare(self) -> None: ...

    def tasks(self) -> Any: ...

    def judge(self, fold: dict[str, Any]) -> object: ...

    @property
    def objective(self) -> Any: ...

    def inspect(self, space: Any) -> Findings:
        raise ConfigurationError("There is nothing to inspect.")

    def export(self, point: dict[str, Any], weights_directory: Path, path: Path) -> Path:
        raise ConfigurationError("There is nothing to export.")
