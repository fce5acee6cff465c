"""The start's handle on all other ranks."""

import time
from collections.abc import Sequence, Set
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from nnlo_opt.app.run.rank.placement import Placement
from nnlo_opt.app.run.rank.roles import RankRoles, RoleSetup
from nnlo_opt.app.run.rank.server import RankServer
from nnlo_opt.core.base.errors import NnloError, OutOfTimeError
from nnlo_opt.core.base.pulse import PULSE
from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.comm.messages import Message
from nnlo_opt.core.comm.run_messages import OpenRun, PreemptionHeard, Prepared, Shutdown
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.comm.transport import Received, Transport, wait_until
from nnlo_opt.engine.runtime.preemption import Preemption

if TYPE_CHECKING:
    from nnlo_opt.engine.comm.mpi.world import Communicator, World

Answer = TypeVar("Answer", bound=Message)
#: reasons for the end of a preempted start: without a launcher, and with one, which may have received another signal
PREEMPTED, ASKED = "preempted by SIGUSR1", "asked to end by nnlo-opt launch"
#: seconds for ranks to leave after a search with dead ranks
LEAVING_S = 10.0
#: seconds that the rank of this process works between two turns of the coordinator; one batch may take longer
PUMP_S = 1e-3


class RankDiedError(NnloError):
    """Raised if a rank dies before it has answered."""


class ServingRanks:
    """Ranks that run `app.run.rank.server`; the rank in this process works when `work` is called.

    Args:
        transport: transport to all ranks, on rank 0.
        preemption: preemption of this process, which then has `grace_s` seconds.
        server: server of this rank; None on rank 0 if it only coordinates.
        made: communicators of the team of this rank, to be freed.
        can_leave_work: True if a script may end while a rank is working.
    """

    def __init__(
        self,
        transport: Transport,
        preemption: Preemption,
        grace_s: float,
        server: RankServer | None = None,
        made: "Sequence[Communicator]" = (),
        *,
        can_leave_work: bool = False,
    ) -> None:
        self.transport = transport
        self.server, self.made = server, made
        self.can_leave_work = can_leave_work or transport.n_processes == 1
        self._preemption = preemption
        self._grace_s = grace_s
        #: ranks that have imported everything for training
        self.prepared: set[int] = set()
        #: True from `open_run` on, until `have_stopped`
        self.may_be_at_work = False

    @classmethod
    def of(cls, world: "World | None", setup: RoleSetup) -> "ServingRanks":
        """Create this rank's object. Collective: every rank of `world`, which is None without MPI."""
        topology, context, own = setup.topology, setup.context, LoopbackNetwork(2)
        rank, is_alone = (0, True) if world is None else (world.rank, world.size == 1)
        team = topology.teams[0] if is_alone else topology.team_of_rank(rank)
        ranks: Transport = LoopbackNetwork(1).end(0) if world is None else world.transport()
        comm = None
        if world is not None:
            teams = [team.world_ranks for team in topology.teams]
            comm = world.alone() if is_alone else world.team_communicator(teams)
        if team is None:
            return cls(ranks, context.preemption, setup.options.grace_s)
        placement = Placement.of(team, ranks if rank else own.end(1), comm)
        if not rank:
            ranks = WithOwnRank(ranks, own.end(0)) if 0 in team.world_ranks else own.end(0)
        context.start_watching()
        server = RankServer(RankRoles(placement, setup), setup.workload, context)
        return cls(ranks, context.preemption, setup.options.grace_s, server, placement.made)

    def _pump(self) -> bool:
        """Let the rank of this process work one step; return True if there was anything to do."""
        return self.server is not None and self.server.step()

    def ask(self, rank: int, question: Message, kind: type[Answer]) -> Answer:
        """Send `question` and wait for the answer; drop messages of blocks about ended assignments.

        Raises:
            OutOfTimeError: the grace period of a preemption has ended before the answer.
            RankDiedError: the rank has died.
        """
        self.transport.send(rank, question)
        found: list[Answer] = []

        def look() -> bool:
            PULSE.ticks += 1
            while not found:
                if self._preemption.is_over or rank in self.transport.lost:
                    return True
                received = self.transport.poll()
                if received is None:
                    if not self._pump():
                        return False
                elif isinstance(received.message, kind):
                    found.append(received.message)
                elif isinstance(received.message, Prepared):
                    self.prepared.add(received.source)
                elif isinstance(received.message, PreemptionHeard):
                    self._preemption.ask()
            return True

        wait_until(look, transport=self.transport)
        if not found and rank in self.transport.lost:
            raise RankDiedError(f"Rank {rank} has died before it answered; start again.")
        if not found:
            raise OutOfTimeError(f"the {self._grace_s:g} s of `--grace` are over.")
        return found[0]

    def open_run(self, run: OpenRun, topology: Topology) -> None:
        """Open a run on all ranks, except one that only coordinates."""
        for rank in range(self.transport.size):
            if rank != self.transport.rank or topology.team_of_rank(rank):
                self.transport.send(rank, run)
        self.may_be_at_work = True

    def tell_all(self, message: Message) -> None:
        """Send a message to all other ranks."""
        for rank in range(self.transport.size):
            if rank != self.transport.rank:
                self.transport.send(rank, message)

    def have_stopped(self) -> None:
        """Note that all ranks have stopped working, and can receive messages again."""
        self.may_be_at_work = False

    def work(self) -> bool:
        """Let the rank of this process work for a while; return True if there was anything to do."""
        until_s = time.perf_counter() + PUMP_S
        worked = False
        while self._pump():
            worked = True
            if time.perf_counter() >= until_s:
                break
        return worked

    def release(self, exit_code: int) -> None:
        """Release all other ranks with this code; return when they have been told, after deaths when they have left."""
        self.tell_all(Shutdown(exit_code=exit_code))
        self.transport.flush(timeout_s=30.0)
        if self.transport.lost:
            self._wait_until_left()

    def _wait_until_left(self) -> None:
        """Wait until all other ranks have left: MPI is not finalized then, and they would treat our exit as a death."""
        n_others = self.transport.size - 1

        def all_left() -> bool:
            while self.transport.poll() is not None:
                pass
            return not self._pump() and len(self.transport.lost) >= n_others

        wait_until(all_left, LEAVING_S)


class WithOwnRank(Transport):
    """Transport of rank 0 if it is also a master: messages to rank 0 stay in this process."""

    def __init__(self, others: Transport, own: Transport) -> None:
        self._others = others
        self._own = own
        #: the start itself is not one of the ranks it sends to
        self.rank = -1
        self.size = others.size
        self.n_processes = others.n_processes

    @property
    def rings(self) -> bool:
        return self._others.rings

    def pause(self, seconds: float) -> None:
        self._others.pause(seconds)

    @property
    def lost(self) -> Set[int]:
        return self._others.lost

    def send(self, dest: int, message: Message, payload: np.ndarray | None = None) -> None:
        if dest == 0:
            self._own.send(1, message, payload)
        else:
            self._others.send(dest, message, payload)

    def poll(self) -> Received | None:
        own = self._own.poll()
        return Received(0, own.message, own.payload) if own is not None else self._others.poll()

    def flush(self, timeout_s: float) -> None:
        self._others.flush(timeout_s)
