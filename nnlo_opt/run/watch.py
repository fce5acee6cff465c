"""A rank's watchdog: whom it watches on its node, and where it writes what it sees."""

import socket
from pathlib import Path

from nnlo_opt.comm.mpi.ulfm import IS_ON
from nnlo_opt.comm.mpi.world import World
from nnlo_opt.comm.topology import Topology
from nnlo_opt.runtime.handles import CARD_BYTES
from nnlo_opt.runtime.log import log_path
from nnlo_opt.runtime.peers import Peer
from nnlo_opt.runtime.watchdog import Watchdog
from nnlo_opt.trials.deaths import Death, leave_note


def meet_node(watchdog: Watchdog, world: World) -> None:
    """Have it watch the other ranks of its node. Collective: every rank of the world."""
    card = watchdog.heart.card if watchdog.heart is not None else bytes(CARD_BYTES)
    cards = world.on_node(card)
    peers = (Peer.of(rank, of_rank) for rank, of_rank in cards.items() if rank != world.rank)
    watchdog.watch([peer for peer in peers if peer is not None])


def begin_watch(watchdog: Watchdog, topology: Topology, run: Path) -> None:
    """Watch, and leave notes of deaths in the run directory. From the main thread."""

    def saw_death(world_rank: int, how: str) -> None:
        if IS_ON and world_rank:
            return  # the coordinator outlives it, and counts what is lost with it
        team = topology.team_of_rank(world_rank)
        index = None if team is None else team.index
        leave_note(run, Death(world_rank=world_rank, team=index, host=socket.gethostname(), how=how))

    watchdog.saw_death = saw_death
    watchdog.log = log_path(run, watchdog.world_rank)
    watchdog.start()
