"""Program of one rank of a short job: `places FILE` reports where the rank runs, `death` kills one of two ranks.

Each line of its standard output is a JSON object. A rank reports its place before its first message.
"""

import json
import os
import signal
import socket
import sys
import time
from typing import Any

import numpy as np

from nnlo_opt.core.comm.transport import RanksLost, wait_until
from nnlo_opt.engine.comm.mpi.ulfm import losing_ranks, shrink
from nnlo_opt.engine.comm.mpi.world import WORLD, World, library
from nnlo_opt.engine.runtime.devices import cores
from nnlo_opt.engine.runtime.launched import split_world
from nnlo_opt.engine.runtime.mpi_kind import MpiKind

#: bytes and round trips of small and of large messages
_SMALL, _LARGE = (8, 200), (1 << 23, 5)


def _say(**values: Any) -> None:
    os.write(1, (json.dumps(values) + "\n").encode())


def _one_way_s(other: int, n_bytes: int, n_times: int) -> float:
    """Return the seconds per message. Collective: rank 0 and one other rank, each with the number of its partner."""
    buffer = bytearray(n_bytes)
    for n in (1, n_times):  # the first round connects
        begun_s = time.perf_counter()
        for _ in range(n):
            for call in (WORLD.Send, WORLD.Recv) if other else (WORLD.Recv, WORLD.Send):
                call(buffer, other)
    return (time.perf_counter() - begun_s) / (2 * n_times)


def places(file: str) -> None:
    """Report the place and neighbours of each rank, and how fast rank 0 reaches a rank on its host and on another.

    Args:
        file: file that should be visible on every host; empty for none.
    """
    world = World()
    launch = split_world(world.size)
    # Each of several worlds has a rank 0.
    rank = world.rank if launch is None else launch.rank or 0
    place = {"rank": rank, "size": world.size, "host": socket.gethostname(), "cores": sorted(cores())}
    remedy = "" if launch is None else launch.remedy(str(MpiKind.of(library())))
    _say(**place, sees_folder=not file or os.path.exists(file), library=library(), remedy=remedy)
    near = sorted(world.on_node(b""))
    _say(rank=world.rank, n_sharing=len(near))
    far = [rank for rank in range(world.size) if rank not in near]
    partners = np.array([[*near[1:], 0][0], [*far, 0][0]])
    WORLD.Bcast(partners)  # rank 0 chooses
    for partner in filter(None, partners.tolist()):
        if world.rank in (0, partner):
            other = partner if world.rank == 0 else 0
            (small_s, large_s) = (_one_way_s(other, *message) for message in (_SMALL, _LARGE))
            if world.rank == 0:
                _say(rank=partner, latency_us=small_s * 1e6, mb_per_s=_LARGE[0] / large_s / 1e6)
    everybody = WORLD.Ibarrier()
    wait_until(everybody.Test)  # sleeping, so that the cores are free for the two


def death() -> None:
    """Kill rank 1; rank 0 reports after how many milliseconds it notices that it is alone."""
    WORLD.Barrier()
    if WORLD.Get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    begun_s = time.perf_counter()
    try:
        with losing_ranks():
            WORLD.Recv(bytearray(1), 1)
    except RanksLost:
        if shrink(WORLD)[0].Get_size() == 1:
            _say(noticed_ms=(time.perf_counter() - begun_s) * 1e3)
    os._exit(0)  # `Finalize` may hang after a death


if __name__ == "__main__":
    death() if sys.argv[1] == "death" else places(sys.argv[2])
