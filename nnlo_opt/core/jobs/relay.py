"""Passes messages between the ranks of a job and its files: the workplace of a `Job`.

Two threads meet here. The main thread calls `turn`, and so everything of MPI; the job's thread calls all the rest, and
writes the files. Only two queues are common to both, and appending to a deque and taking from it are atomic.

A master is busy from the order to run a fold until the message that ends it has been handed to the job. Nothing else is
asked of the ranks.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nnlo_opt.core.base.clock import Clock
from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.run_messages import PreemptionHeard, Prepared
from nnlo_opt.core.comm.topology import Team
from nnlo_opt.core.comm.transport import Received, Transport
from nnlo_opt.core.jobs.accepted import ORDERS
from nnlo_opt.core.jobs.job import Workplace

logger = logging.getLogger(__name__)

#: messages that end an assignment
_ENDS = (msg.FoldFinished, msg.FoldFailed, msg.FoldStopped, msg.FoldPaused)


@dataclass(slots=True)
class _UnderWay:
    """Assignment that a master works on."""

    #: rank of the master
    rank: int
    #: how it was told to end; None if it was not
    told: type[msg.AssignmentMessage] | None = None
    #: True if nothing about it may be reported
    is_dropped: bool = False


class Relay(Workplace):
    """Ranks of this job, numbered as in its own `mpirun`.

    Args:
        transport: transport to all of these ranks, on rank 0.
        teams: their teams.
        clock: this machine's clock.
        on_preemption: called in the main thread if a rank has been told that the job will end.
    """

    def __init__(
        self, transport: Transport, teams: Sequence[Team], clock: Clock, on_preemption: Callable[[], None]
    ) -> None:
        self._transport, self._teams, self._clock, self._on_preemption = transport, teams, clock, on_preemption
        #: monotonic time from which on `let_go` stops folds that have written no checkpoint; any thread may set it
        self.stop_at_s = math.inf
        #: numbers of this job's first rank and first team among those of all jobs; None before it is admitted. A job
        #: that joins anew gets others
        self.numbers: tuple[int, int] | None = None
        #: (rank, order), from the job's thread to the main thread
        self._orders: deque[tuple[int, msg.Message]] = deque()
        #: (rank, message), from the main thread to the job's thread
        self._arrived: deque[tuple[int, msg.Message]] = deque()
        #: job's thread: number -> assignment
        self._under_way: dict[int, _UnderWay] = {}
        #: job's thread: dead ranks, the last message of each team that has lost some, and those to be reported again
        self._dead: set[int] = set()
        self._reformed: dict[int, tuple[int, msg.TeamReformed]] = {}
        self._again: list[tuple[int, msg.Message]] = []
        #: main thread: number of ranks known to be dead, and teams without any other
        self._n_lost = 0
        self._lost_teams: set[int] = set()

    # ------------------------------------------------------------ main thread

    def turn(self) -> bool:
        """Pass on what has come from either side; return True if there was anything. Never waits."""
        worked = False
        while self._orders:
            self._transport.send(*self._orders.popleft())
            worked = True
        while (received := self._transport.poll()) is not None:
            self._take_in(received)
            worked = True
        if len(self._transport.lost) > self._n_lost:
            self._bury_teams()
        return worked

    @property
    def has_arrived(self) -> bool:
        """True if ranks have sent messages that the job's thread has not taken; any thread may ask."""
        return bool(self._arrived)

    def _take_in(self, received: Received) -> None:
        match received.message:
            case PreemptionHeard():
                self._on_preemption()
            case Prepared():
                pass
            case _ if received.payload is not None:
                raise ProtocolError(f"A vector cannot travel to another job. Received: {received.message}.")
            case _:
                self._arrived.append((received.source, received.message))

    def _bury_teams(self) -> None:
        """Report teams that have lost all ranks, as no rank is left that would."""
        lost = self._transport.lost
        self._n_lost = len(lost)
        for team in self._teams:
            if team.index not in self._lost_teams and lost >= set(team.world_ranks):
                self._lost_teams.add(team.index)
                ended = msg.TeamReformed(alive=[], world_ranks=[], n_masters=1, taken=-1, goes_on=-1)
                self._arrived.append((team.master_rank, ended))

    # ------------------------------------------------------------ job's thread

    @property
    def is_busy(self) -> bool:
        return bool(self._under_way or self._arrived or self._again)

    def admit(self, first_rank: int, first_team: int) -> None:
        self.numbers = first_rank, first_team

    def take(self, term: int, rank: int, message: msg.Message) -> None:
        if not isinstance(message, ORDERS) or not any(rank in team.world_ranks for team in self._teams):
            raise ProtocolError(f"This job does not accept {type(message).__name__} for rank {rank}.")
        if rank in self._dead:
            return  # the coordinator is about to hear of it
        if isinstance(message, msg.RunFold):
            if any(work.rank == rank for work in self._under_way.values()):
                raise ProtocolError(f"This job does not accept RunFold for rank {rank}, which is at work.")
            self._under_way[message.assignment] = _UnderWay(rank)
        self._orders.append((rank, message))

    def reports(self) -> list[tuple[int, msg.Message]]:
        reports, self._again = self._again, []
        while self._arrived:
            rank, message = self._arrived.popleft()
            if isinstance(message, msg.TeamReformed):
                self._reform(rank, message)
            if isinstance(message, msg.FoldFailed) and self._is_to_end(message.assignment):
                # A signal that ends this job may have killed a process of the user: another job will show whether the
                # trial fails.
                logger.warning("assignment %d failed while it was to end: %s", message.assignment, message.reason)
                message = msg.FoldStopped(assignment=message.assignment)
            if not isinstance(message, msg.AssignmentMessage) or self._counts(message):
                reports.append((rank, message))
        return reports

    def let_go(self) -> None:
        kind = msg.PreemptFold if self._clock.monotonic_s() < self.stop_at_s else msg.StopFold
        for number in self._under_way:
            self._tell(number, kind)

    def drop(self) -> None:
        """Stop all assignments and report nothing more about them.

        This workplace stays busy until their masters have ended them: they would refuse a new order, and the job gets
        none before. Teams that have lost ranks are reported once more, because the job joins as if it had all of them.
        """
        for number, work in self._under_way.items():
            self._tell(number, msg.StopFold)
            work.is_dropped = True
        self._again = list(self._reformed.values())

    def _tell(self, number: int, kind: type[msg.PreemptFold | msg.StopFold]) -> None:
        """Tell a master once to end its assignment: to write a checkpoint, and later to stop."""
        work = self._under_way[number]
        if work.told not in (kind, msg.StopFold):
            work.told = kind
            self._orders.append((work.rank, kind(assignment=number)))

    def _is_to_end(self, number: int) -> bool:
        """Return True if the master of an assignment was told to end it."""
        return number in self._under_way and self._under_way[number].told is not None

    def _counts(self, message: msg.AssignmentMessage) -> bool:
        """Return True if a message of a master is to be reported; note if it ends the assignment."""
        work = self._under_way.get(message.assignment)
        if work is not None and isinstance(message, _ENDS):
            del self._under_way[message.assignment]
        if work is None or work.is_dropped:
            logger.debug("dropped a late %s of assignment %d", type(message).__name__, message.assignment)
        return work is not None and not work.is_dropped

    def _reform(self, rank: int, message: msg.TeamReformed) -> None:
        """Note which ranks of a team are dead, and which assignment has died with them."""
        team = next(team for team in self._teams if rank in team.world_ranks)
        self._dead |= set(team.world_ranks) - set(message.alive)
        self._reformed[team.index] = rank, message
        for number, work in list(self._under_way.items()):
            # An order that a living master has not received yet is still in transit.
            in_transit = work.rank in message.world_ranks and number > message.taken
            if work.rank in team.world_ranks and number != message.goes_on and not in_transit:
                del self._under_way[number]
