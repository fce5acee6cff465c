"""Virtual blocks: twins of the masters, which answer the coordinator's messages in virtual time and train nothing.

`Workload` says what comes of an assignment, a `VirtualMaster` tells it, one message after another, and `VirtualRanks`
is the coordinator's end of the transport to all of them.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.messages import Message
from nnlo_opt.comm.topology import Topology
from nnlo_opt.comm.transport import Received, Transport
from nnlo_opt.errors import ConfigurationError, ProtocolError, TrialError
from nnlo_opt.simulate.clock import Agenda, VirtualClock
from nnlo_opt.simulate.durations import Durations
from nnlo_opt.simulate.faults import NO_FAULTS, Faults
from nnlo_opt.simulate.objectives import Objective
from nnlo_opt.space.space import Point

#: the metric that an epoch reports, as an objective module's
METRIC = "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What comes of an assignment: a function of the seed and of trial, fold and attempt, not of when or where it runs.

    So searches on different numbers of blocks meet the same durations and the same faults.
    """

    objective: Objective
    durations: Durations
    faults: Faults = NO_FAULTS
    #: reports of a fold whose objective is a plain number; it is the value of each
    n_epochs: int = 1
    #: from the order to the start of the training: building the model, loading data
    startup_s: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.n_epochs < 1:
            raise ConfigurationError(f"A virtual fold must have 1 epoch at least. Received: {self.n_epochs}.")
        if not 0 <= self.startup_s < math.inf:
            raise ConfigurationError(f"A start must take finite seconds, at least 0. Received: {self.startup_s:g}.")

    def reports(self, order: msg.RunFold, waited_s: float | None) -> Iterator[tuple[float, Message]]:
        """All that a master says of an assignment, each with the seconds since what it said before."""
        number = order.assignment
        rng = np.random.default_rng((self.seed, order.trial, order.fold, order.attempt))
        yield self.startup_s, msg.FoldStarted(assignment=number, waited_s=waited_s)
        try:
            train_s = self.durations.seconds(order.point, rng)
            values = self._values(order.point)
        except Exception as error:
            yield 0.0, msg.FoldFailed(assignment=number, reason=_reason(error))
            return
        epoch_s, share = train_s / len(values), self.faults.fails_after(rng)
        n_epochs = len(values) if share is None else int(share * len(values))
        for epoch, value in enumerate(values[:n_epochs], 1):
            yield epoch_s, msg.EpochReported(assignment=number, epoch=epoch, metrics={METRIC: value})
        if share is None:
            yield 0.0, self._finished(number, values, train_s)
        else:
            yield share * train_s - n_epochs * epoch_s, msg.FoldFailed(assignment=number, reason="a simulated fault")

    def _values(self, point: Point) -> list[float]:
        result = np.asarray(self.objective.function(point), dtype=float)
        values = [float(result)] * self.n_epochs if result.ndim == 0 else result.tolist()
        if result.ndim > 1 or not values or not np.isfinite(result).all():
            raise TrialError(f"the objective must return finite numbers. Received: {result}")
        return values

    def _finished(self, assignment: int, values: list[float], train_s: float) -> msg.FoldFinished:
        return msg.FoldFinished(
            assignment=assignment,
            figure_of_merit=values[-1],
            metrics={METRIC: values[-1]},
            n_epochs=len(values),
            train_s=train_s,
        )


def _reason(error: Exception) -> str:
    """An exception of a user's function in one sentence: our own as they are, others with their type."""
    return str(error) if isinstance(error, TrialError) else f"{type(error).__name__}: {error}"


class VirtualRanks(Transport):
    """The coordinator's end of a transport whose other ends are virtual masters."""

    def __init__(self, topology: Topology, workload: Workload, clock: VirtualClock, agenda: Agenda) -> None:
        self.rank = 0
        self.size = self.n_processes = topology.world_size
        self._clock = clock
        self._agenda = agenda
        self._masters = {team.master_rank: VirtualMaster(team.master_rank, workload, self) for team in topology.teams}
        #: what the masters have sent and the coordinator has not taken, in order
        self._inbox: deque[Received] = deque()

    @property
    def has_news(self) -> bool:
        """Whether a message waits for the coordinator."""
        return bool(self._inbox)

    @property
    def now_s(self) -> float:
        """The time of all masters."""
        return self._clock.now_s

    @property
    def busy_s(self) -> float:
        """Seconds that the teams have spent on assignments that have ended, together."""
        return math.fsum(master.busy_s for master in self._masters.values())

    def send(self, dest: int, message: Message, payload: np.ndarray | None = None) -> None:
        # Not handled at once: it leaves now, and what the master does about it is not the coordinator's time.
        self._agenda.add(self._clock.now_s, partial(self._masters[dest].handle_order, message))

    def poll(self) -> Received | None:
        return self._inbox.popleft() if self._inbox else None

    def flush(self, timeout_s: float) -> None:
        """Nothing to do: what is sent has arrived."""

    def later(self, seconds: float, master: "VirtualMaster", message: Message) -> None:
        """Have `master` say `message` in `seconds`, unless it is about something else by then."""
        self._agenda.add(self._clock.now_s + seconds, partial(master.say, message))

    def report(self, source: int, message: Message) -> None:
        """Hand a message of the master of rank `source` to the coordinator."""
        self._inbox.append(Received(source, message, None))


class VirtualMaster:
    """The master of a virtual team; serves one assignment after another."""

    def __init__(self, rank: int, workload: Workload, ranks: VirtualRanks) -> None:
        self._rank = rank
        self._workload = workload
        self._ranks = ranks
        #: number of the assignment under way; None when idle
        self._assignment: int | None = None
        #: what is left to be said of it
        self._reports: Iterator[tuple[float, Message]] = iter(())
        #: when the last assignment ended; None before there was one
        self._idle_since_s: float | None = None
        #: when the last order to run a fold came
        self._busy_since_s = 0.0
        #: seconds spent on assignments that have ended
        self.busy_s = 0.0

    def handle_order(self, message: Message) -> None:
        """Take in one message of the coordinator."""
        match message:
            case msg.RunFold():
                self._run(message)
            case msg.StopFold():
                if message.assignment == self._assignment:
                    self._end(msg.FoldStopped(assignment=message.assignment))
            case msg.PreemptFold() | msg.FoldRecorded():
                pass  # there are no checkpoints to be written or removed
            case _:
                raise ProtocolError(f"A master takes no {type(message).__name__} from the coordinator.")

    def say(self, message: Message) -> None:
        """Send what was to be said at this time, and prepare what comes after it."""
        if getattr(message, "assignment", None) != self._assignment:
            return  # it was stopped
        if isinstance(message, msg.FoldFinished | msg.FoldFailed):
            self._end(message)
        else:
            self._ranks.report(self._rank, message)
            self._go_on()

    def _run(self, order: msg.RunFold) -> None:
        if self._assignment is not None:
            raise ProtocolError(f"Assignment {order.assignment} came while {self._assignment} is under way.")
        self._busy_since_s = self._ranks.now_s
        waited_s = None if self._idle_since_s is None else self._busy_since_s - self._idle_since_s
        self._assignment, self._reports = order.assignment, self._workload.reports(order, waited_s)
        self._go_on()

    def _go_on(self) -> None:
        seconds, message = next(self._reports)
        self._ranks.later(seconds, self, message)

    def _end(self, message: Message) -> None:
        self._assignment, self._idle_since_s = None, self._ranks.now_s
        self.busy_s += self._idle_since_s - self._busy_since_s
        self._ranks.report(self._rank, message)
