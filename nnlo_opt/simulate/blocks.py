"""Virtual blocks: twins of the masters, which answer the coordinator in virtual time without any training.

A `Workload` defines the results of an assignment, a `VirtualMaster` sends them, one message after another.
`VirtualRanks` is the coordinator's endpoint of the transport to all masters.
"""

import math
from collections import deque
from collections.abc import Iterator
from functools import partial

import numpy as np

from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.messages import Message
from nnlo_opt.comm.topology import Topology
from nnlo_opt.comm.transport import Received, Transport
from nnlo_opt.errors import ProtocolError
from nnlo_opt.simulate.clock import Agenda, VirtualClock
from nnlo_opt.simulate.workload import Workload


class VirtualRanks(Transport):
    """Coordinator's endpoint of a transport whose other endpoints are virtual masters.

    Args:
        topology: teams, one master each.
        workload: results of assignments.
        clock: virtual time.
        agenda: receives the messages to come.
    """

    def __init__(self, topology: Topology, workload: Workload, clock: VirtualClock, agenda: Agenda) -> None:
        self.rank = 0
        self.size = self.n_processes = topology.world_size
        self._clock = clock
        self._agenda = agenda
        self._masters = {team.master_rank: VirtualMaster(team.master_rank, workload, self) for team in topology.teams}
        #: messages of the masters that the coordinator has not taken, in order
        self._inbox: deque[Received] = deque()

    @property
    def has_news(self) -> bool:
        """True if a message waits for the coordinator."""
        return bool(self._inbox)

    @property
    def now_s(self) -> float:
        """Virtual time, the same for all masters."""
        return self._clock.now_s

    @property
    def busy_s(self) -> float:
        """Seconds that all teams together have spent on assignments that have ended."""
        return math.fsum(master.busy_s for master in self._masters.values())

    def send(self, dest: int, message: Message, payload: np.ndarray | None = None) -> None:
        # The master handles it from the agenda, so that its work takes none of the coordinator's time.
        self._agenda.add(self._clock.now_s, partial(self._masters[dest].handle_order, message))

    def poll(self) -> Received | None:
        return self._inbox.popleft() if self._inbox else None

    def flush(self, timeout_s: float) -> None:
        """Do nothing, as every message has arrived."""

    def later(self, seconds: float, master: "VirtualMaster", message: Message) -> None:
        """Have `master` send `message` in `seconds`, unless it runs another assignment by then."""
        self._agenda.add(self._clock.now_s + seconds, partial(master.send, message))

    def report(self, source: int, message: Message) -> None:
        """Hand the coordinator a message from the master of rank `source`."""
        self._inbox.append(Received(source, message, None))


class VirtualMaster:
    """Master of a virtual team; runs one assignment after another."""

    def __init__(self, rank: int, workload: Workload, ranks: VirtualRanks) -> None:
        self._rank = rank
        self._workload = workload
        self._ranks = ranks
        #: number of the assignment under way; None when idle
        self._assignment: int | None = None
        #: remaining messages about it, each with the seconds before it
        self._reports: Iterator[tuple[float, Message]] = iter(())
        #: time at which the last assignment ended; None before the first one
        self._idle_since_s: float | None = None
        #: time of the last order to run a fold
        self._busy_since_s = 0.0
        #: seconds spent on assignments that have ended
        self.busy_s = 0.0

    def handle_order(self, message: Message) -> None:
        """Take in one message from the coordinator."""
        match message:
            case msg.RunFold():
                self._run(message)
            case msg.StopFold():
                if message.assignment == self._assignment:
                    self._end(msg.FoldStopped(assignment=message.assignment))
            case msg.PreemptFold() | msg.FoldRecorded():
                pass  # a virtual master has no checkpoints
            case _:
                raise ProtocolError(f"A master takes no {type(message).__name__} from the coordinator.")

    def send(self, message: Message) -> None:
        """Send a message that is due now, then schedule the next one."""
        if getattr(message, "assignment", None) != self._assignment:
            return  # the assignment was stopped
        if isinstance(message, msg.FoldFinished | msg.FoldFailed):
            self._end(message)
        else:
            self._ranks.report(self._rank, message)
            self._schedule_next()

    def _run(self, order: msg.RunFold) -> None:
        if self._assignment is not None:
            raise ProtocolError(f"Assignment {order.assignment} came while {self._assignment} is under way.")
        self._busy_since_s = self._ranks.now_s
        waited_s = None if self._idle_since_s is None else self._busy_since_s - self._idle_since_s
        self._assignment, self._reports = order.assignment, self._workload.reports(order, waited_s)
        self._schedule_next()

    def _schedule_next(self) -> None:
        seconds, message = next(self._reports)
        self._ranks.later(seconds, self, message)

    def _end(self, message: Message) -> None:
        self._assignment, self._idle_since_s = None, self._ranks.now_s
        self.busy_s += self._idle_since_s - self._busy_since_s
        self._ranks.report(self._rank, message)
