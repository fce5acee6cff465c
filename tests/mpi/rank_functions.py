"""What ranks run in the tests of this folder: `python rank_functions.py NAME`, one plain function each.

A function that returns has passed on its rank; one that raises ends all ranks with exit code 1.
"""

import sys
import traceback

import numpy as np

from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.mpi import GatedComm, MpiTransport, World, finalize
from nnlo_opt.comm.transport import Received, receive, wait_until
from nnlo_opt.errors import TrialError

LIMIT_S = 30.0


def take(transport: MpiTransport) -> Received:
    found = receive([transport], LIMIT_S)
    assert found is not None, f"rank {transport.rank} waited in vain"
    return found[1]


def messages_arrive_whole_and_in_order(world: World) -> None:
    transport = world.transport()
    others = [rank for rank in range(world.size) if rank != world.rank]
    sizes = [0, 1, 1000, 300_000]
    for number, size in enumerate(sizes):
        payload = np.full(size, world.rank + number, np.float32)
        for rank in others:
            transport.send(rank, msg.StopFold(assignment=number), payload if size else None)
    next_number = dict.fromkeys(others, 0)
    for _ in range(len(others) * len(sizes)):
        received = take(transport)
        number = next_number[received.source]
        next_number[received.source] += 1
        assert received.message == msg.StopFold(assignment=number)
        if sizes[number]:
            assert received.payload is not None
            assert received.payload.ctypes.data % 64 == 0
            assert np.array_equal(received.payload, np.full(sizes[number], received.source + number, np.float32))
        else:
            assert received.payload is None
    transport.flush(LIMIT_S)
    assert transport.poll() is None


def a_sent_buffer_may_be_reused(world: World) -> None:
    transport = world.transport()
    if world.rank == 0:
        payload = np.ones(500_000, np.float32)
        for rank in range(1, world.size):
            transport.send(rank, msg.StopFold(assignment=1), payload)
        payload[:] = -1.0
        transport.flush(LIMIT_S)
    else:
        payload_received = take(transport).payload
        assert payload_received is not None
        assert np.all(payload_received == 1.0)


def gated_collectives_work(world: World) -> None:
    comm = GatedComm(world._comm, lambda: None)
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
    def look_out() -> None:
        raise TrialError("a rank has raised")

    calls = [lambda comm: comm.Barrier(), lambda comm: comm.allreduce(1), lambda comm: comm.recv(source=0)]
    for call in calls:
        comm = GatedComm(world._comm, look_out)
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


if __name__ == "__main__":
    place = World()
    try:
        globals()[sys.argv[1]](place)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        place.abort(1)
    finalize()
