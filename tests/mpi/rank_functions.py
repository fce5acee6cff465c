"""What ranks run in the tests of this folder: `python rank_functions.py NAME...`, plain functions one after another.

A function that returns has passed on its rank; one that raises ends all ranks with exit code 1.
"""

import os
import signal
import sys
import traceback
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
from mpi4py import MPI

from nnlo_opt.app.run.options.values import Options
from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.rank.roles import RoleSetup
from nnlo_opt.app.run.start.embedded import ScriptRank, read_shared_events, temporary_run
from nnlo_opt.app.run.start.host import ScriptHost
from nnlo_opt.app.run.start.training import TrainingDriver
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.core.block.task import FoldTask
from nnlo_opt.core.comm import codec
from nnlo_opt.core.comm.calls import Step
from nnlo_opt.core.comm.messages import FoldRecorded, Message
from nnlo_opt.core.comm.objective_messages import Dismissed, Leave
from nnlo_opt.core.comm.topology import plan_single_block
from nnlo_opt.core.comm.transport import receive, wait_until
from nnlo_opt.core.data.folds import single_fold
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_directory import RunRequest
from nnlo_opt.engine.comm.mpi import parts
from nnlo_opt.engine.comm.mpi import transport as mpi_transport
from nnlo_opt.engine.comm.mpi.agreed_calls import AgreedCalls
from nnlo_opt.engine.comm.mpi.gated import GatedComm
from nnlo_opt.engine.comm.mpi.transport import MpiCollective
from nnlo_opt.engine.comm.mpi.ulfm import plain_exit
from nnlo_opt.engine.comm.mpi.world import WORLD, World, finalize
from nnlo_opt.engine.comm.node import Neighbour
from nnlo_opt.engine.comm.rank_group import RankGroup
from nnlo_opt.engine.runtime.devices import cores, pack_cores, unpack_cores
from nnlo_opt.testing.transport_conformance import SCENARIOS, STAR_SCENARIOS, play
from tests.helpers.linear_model import LinearAdapter
from tests.helpers.loopback_team import BuiltTasks, tasks_from
from tests.helpers.memory_source import linear_source

LIMIT_S = 30.0


def the_transport_conforms(world: World) -> None:
    for scenario in SCENARIOS:
        play(scenario, world.transport(), LIMIT_S)
    for star in STAR_SCENARIOS if world.size > 1 else ():
        play(partial(star, number=world.rank, ends=range(1, world.size)), world.transport(), LIMIT_S)


def the_transport_conforms_between_nodes(world: World) -> None:
    reach = Neighbour.of
    # Rank 0 reaches all, and nobody rank 0.
    with patch.object(Neighbour, "of", lambda handle: None if world.rank else reach(handle)):
        assert not world.transport().rings
        the_transport_conforms(world)


def large_messages_go_in_parts(world: World) -> None:
    with patch.object(parts, "PART_BYTES", 1 << 17):
        the_transport_conforms_between_nodes(world)
    with patch.object(parts, "PART_BYTES", 1 << 12):
        _calls_carry(world, 5000)


def _calls_carry(world: World, n: int) -> None:
    """Every collective call with vectors of `n` numbers, of which the last one tells its rank."""
    calls, group = AgreedCalls(WORLD.Dup()), RankGroup(WORLD)
    last = world.size - 1
    numbers = np.zeros(n, np.float32)
    numbers[-1] = world.rank + 1
    assert calls.broadcast(numbers, last)[-1] == world.size
    assert group.share(numbers if world.rank == last else None, last)[-1] == world.size
    gathered = calls.gather(numbers[: n - world.rank])
    assert len(gathered) == sum(n - rank for rank in range(world.size))
    assert gathered[n - 1] == 1.0
    total = sum(range(1, world.size + 1))
    assert calls.reduce(numbers, "sum")[-1] == total
    assert calls.reduce(numbers, "max")[-1] == world.size
    assert calls.average(numbers, 1, Step([numbers.shape]), "bfloat16", sums=True)[-1] == total
    MpiCollective(WORLD.Dup()).sum_in_place(numbers)
    assert numbers[-1] == total
    assert not numbers[: -world.size].any()


def messages_above_2_gib_arrive(world: World) -> None:
    n_bytes = 2_200_000_000
    root = world.rank == 0

    def vector() -> np.ndarray:
        given = np.zeros(n_bytes, np.uint8)  # no memory is taken before something is written
        given[[0, -1]] = (3, 7) if root else 0
        return given

    def arrived(found: np.ndarray) -> bool:
        return found.size == n_bytes and found[[0, -1]].tolist() == [3, 7]

    assert arrived(AgreedCalls(WORLD.Dup()).broadcast(vector(), 0))
    assert arrived(RankGroup(WORLD).share(vector() if root else None, 0, np.uint8))
    rows = AgreedCalls(WORLD.Dup()).gather(vector()[: n_bytes // 2 if root else n_bytes - n_bytes // 2])
    assert rows.size == n_bytes
    assert rows[0] == 3
    del rows
    with patch.object(Neighbour, "of", lambda handle: None):
        ends = world.transport()
    if root:
        ends.send(1, FoldRecorded(assignment=1), vector().view(np.float32))
        ends.flush(300)
    else:
        _, received = receive([ends], 300)
        assert arrived(received.payload.view(np.uint8))
    WORLD.Barrier()


def payloads_stay_in_the_memory_of_the_node(world: World) -> None:
    sizes: list[int] = []

    def decode(buffer: np.ndarray) -> tuple[Message, np.ndarray | None]:
        sizes.append(len(buffer))
        return codec.decode(buffer)

    with patch.object(mpi_transport, "decode", decode):
        ends = world.transport()
        assert ends.rings
        vector = np.arange(100_000, dtype=np.float32)
        n_rounds = 5  # more than there is room for: what comes says what the sender is through with
        for _ in range(n_rounds * (world.size - 1 if world.rank == 0 else 1)):
            if world.rank:
                ends.send(0, FoldRecorded(assignment=1), vector)
            _, received = receive([ends], LIMIT_S)
            np.testing.assert_array_equal(received.payload, vector)
            if not world.rank:
                ends.send(received.source, FoldRecorded(assignment=1), vector)
    assert max(sizes) < 1_000, sizes


class OpenGate:
    """Everybody may pass."""

    def meet(self, name: str) -> None: ...

    def look_out(self) -> None: ...


class ShutGate(OpenGate):
    """Nobody may: a rank has raised."""

    def meet(self, name: str) -> None:
        self.look_out()

    def look_out(self) -> None:
        raise TrialError("a rank has raised")


def gated_collectives_work(world: World) -> None:
    comm = GatedComm(world._comm, OpenGate())
    total = comm.allreduce(comm.rank)
    assert total == sum(range(comm.size))
    buffer = np.full(10, float(comm.rank))
    out = np.empty(10)
    comm.Allreduce(buffer, out)
    assert np.all(out == total)
    assert comm.bcast("word" if comm.rank == 0 else None) == "word"
    neighbour = (comm.rank + 1) % comm.size
    request = comm.isend(comm.rank, neighbour, tag=3)
    assert comm.recv(source=(comm.rank - 1) % comm.size, tag=3) == (comm.rank - 1) % comm.size
    request.wait()
    comm.close()


def a_gate_gives_up_when_told(world: World) -> None:
    calls = [lambda comm: comm.Barrier(), lambda comm: comm.allreduce(1), lambda comm: comm.recv(source=0)]
    for call in calls:
        comm = GatedComm(world._comm, ShutGate())
        if world.rank == 0:
            continue  # the rank that has raised never comes
        try:
            call(comm)
        except TrialError:
            continue
        raise AssertionError("the call came back although a rank is missing")


def waiting_ends_in_time(world: World) -> None:
    assert receive([world.transport()], 0.01) is None
    assert not wait_until(lambda: False, 0.01)


def the_ranks_of_a_node_tell_each_other_their_cores(world: World) -> None:
    # One node here: of every rank what it gave, at its rank of the world.
    assert world.on_node(bytes([world.rank] * 3)) == {rank: bytes([rank] * 3) for rank in range(world.size)}
    packed = world.on_node(pack_cores(cores()))
    assert unpack_cores(packed[world.rank]) == cores()


class FailingAdapter(LinearAdapter):
    """Takes no weights after three gradients, where it `fails`."""

    def __init__(self, fails: bool) -> None:
        super().__init__(4)
        self._fails = fails

    def borrow_weights(self, vector) -> None:
        self.write_weights(vector)

    def write_weights(self, vector) -> None:
        if self._fails and self._n_batches == 3:
            raise RuntimeError("no weights, please")
        super().write_weights(vector)


def a_rank_that_fails_between_two_common_steps_fails_the_training(world: World) -> None:
    for mode, n_processes in (("allreduce", 1), ("downpour", 2)):
        options = TrainingOptions(mode=mode, batch=2, epochs=2, optimizer="sgd", learning_rate=0.05)
        for faulty in (None, 1, world.size - 1):

            def make_tasks(options=options, faulty=faulty) -> BuiltTasks:
                def build(parameters, options, seed) -> FailingAdapter:
                    return FailingAdapter(world.rank == faulty)

                return tasks_from(build, linear_source(60, 4), [single_fold(50, 10)], options)

            (trial,) = train(RankGroup(world._comm), options, n_processes, make_tasks).trials
            line = FailingAdapter.write_weights.__code__.co_firstlineno + 2
            expected = "" if faulty is None else f"RuntimeError: no weights, please (`{__file__}`, line {line})"
            assert trial.reason == expected, (mode, faulty, trial.reason)


class Tasks:
    """A workload, as far as a training in one process needs one."""

    searches = False

    def __init__(self, make) -> None:
        self._make = make

    def open_run(self, run) -> None: ...

    def open(self, start) -> FoldTask:
        self._tasks = self._make()
        return self._tasks.open(start)

    def close(self) -> None: ...

    def callbacks(self, task) -> None: ...


def train(group: RankGroup, options: TrainingOptions, n_processes: int, make_tasks) -> Ledger:
    """Train as a manager does; the ledger of it."""
    roles = RoleSetup(
        topology=plan_single_block(group.size, ranks_per_worker=n_processes),
        options=Options(model="linear", training=options, run=RunRequest(root=Path(), name=None)),
        workload=Tasks(make_tasks),
        context=ProcessContext(),
        writes_checkpoints=False,
    )
    own_rank = ScriptRank(group, roles)
    found = Findings(model="linear", kind="model", source="", sha256="", figure="val_loss")
    script = ScriptHost(program="test", space=None, findings=found)
    with temporary_run() as run:
        if group.rank:
            own_rank.serve()
        else:
            asked = Options(model="linear", training=options, run=run, n_processes=n_processes)
            own_rank.coordinate(asked, script, TrainingDriver)
        return Ledger(read_shared_events(group, own_rank.end()))


def a_message_of_a_rank_that_has_died_hides_no_other(world: World) -> None:
    transport = world.transport()
    if world.rank == 0:
        # This rank hears of the death before it looks at the message.
        assert wait_until(lambda: MPI.COMM_SELF.Iprobe() or WORLD.Get_failed().Get_size() > 0, LIMIT_S)
        found = [receive([transport], LIMIT_S) for _ in range(2)]
        print("received from", sorted(received.source for _, received in found))
        transport.send(1, Dismissed())
    else:
        transport.send(0, Leave())
    transport.flush(LIMIT_S)
    if world.rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if world.rank == 1:
        assert receive([transport], LIMIT_S)[1].message == Dismissed()
    sys.stdout.flush()
    plain_exit(0)


if __name__ == "__main__":
    place = World()
    try:
        for function in sys.argv[1:]:
            globals()[function](place)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        place.abort(1)
    finalize()
