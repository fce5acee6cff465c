"""Decisions of a sub-master about one assignment: pure, synchronous, without arrays.

`GroupState.order` handles messages of the top master, `hear` those of the workers; both return instructions for
`master.submaster`, which owns the vectors. A group trains in rounds: every worker pushes once, the sub-master combines
these updates into one and pushes it, and the answer goes to all workers. The phases of an assignment:

    STARTING      the workers build the model and load their shards
    LISTENING     the next message comes from the top master
    TRAINING      the updates of a round come in
    FENCING       the workers push what they have computed ahead, then hand in model state and position
    VALIDATING    they validate the same version on their shares
    ASKING        worker 1 runs the user's callbacks, or figure of merit

In synchronous training a worker that has finished its shard waits at the fence; the group has finished when all its
workers have.
"""

from enum import Enum
from typing import Any

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.block.exchange.rounds import SynchronousRounds, check_same_model
from nnlo_opt.core.block.master import instructions as ins
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.training.history import Metrics


class Phase(Enum):
    """Phases of an assignment (see the module's docstring), and the worker messages that each allows.

    Messages of the top master are allowed while LISTENING.
    """

    STARTING = (msg.WorkerReady,)
    LISTENING = ()
    TRAINING = (msg.PushUpdate,)
    FENCING = (msg.PushUpdate, msg.FenceReached)
    VALIDATING = (msg.Validated,)
    ASKING = (msg.CalledBack, msg.Judged)


class GroupState:
    """One assignment in one group, from the first ready worker on."""

    def __init__(self, workers: range, *, synchronous: bool) -> None:
        """Begin with workers of these numbers in the team; if `synchronous`, each waits at the end of its shard."""
        self.workers = tuple(workers)
        self._synchronous = synchronous
        self.phase = Phase.STARTING
        #: answers of the workers in this phase, except updates, which are in `_round`
        self._answers: dict[int, Any] = {}
        #: updates of the current round
        self._round: dict[int, msg.PushUpdate] = {}
        #: rounds of this epoch; without workers between two epochs
        self._rounds = SynchronousRounds(())
        #: worker -> metrics pushed in this epoch
        self._pushed: dict[int, Metrics] = {}

    # ------------------------------------------------------------ messages of the top master

    def order(self, message: msg.Message) -> list[ins.Instruction]:
        """Handle a message of the top master; ProtocolError, without a change, if it is not allowed now."""
        if self.phase is not Phase.LISTENING:
            raise ProtocolError(f"The top master sent {type(message).__name__} in phase {self.phase.name}.")
        match message:
            case msg.Train():
                return self._train(message)
            case msg.Fence():
                self._begin(Phase.FENCING)
                self._rounds = SynchronousRounds(())
                return [ins.Adopt(message=message), ins.Answer(workers=self.workers, message=message)]
            case msg.Validate():
                self._begin(Phase.VALIDATING)
                return [ins.PassDown(workers=self.workers, message=message)]
            case msg.CallBack() | msg.Judge():
                self._begin(Phase.ASKING)
                return [ins.PassDown(workers=self.workers[:1], message=message)]
        raise ProtocolError(f"A sub-master does not accept {type(message).__name__}.")

    def _train(self, message: msg.Train) -> list[ins.Instruction]:
        begins, positions = not self._rounds.training, message.position
        self._begin(Phase.TRAINING)
        if not begins:
            answer = ins.Answer(workers=tuple(sorted(self._rounds.training)), message=message)
            return [ins.Adopt(message=message), answer]
        self._rounds = SynchronousRounds(self.workers)
        if positions is None:
            return [ins.Adopt(message=message), ins.PassDown(workers=self.workers, message=message)]
        each = [
            ins.PassDown(workers=(worker,), message=message.replaced(position=positions[str(worker)]))
            for worker in self.workers
        ]
        return [ins.Adopt(message=message), *each]

    def _begin(self, phase: Phase) -> None:
        self.phase = phase
        self._answers.clear()

    # ------------------------------------------------------------ messages of the workers

    def hear(self, worker: int, message: msg.Message) -> list[ins.Instruction]:
        """Handle a message of `worker`; ProtocolError, without a change, if the phase does not allow it."""
        if not isinstance(message, self.phase.value):
            raise ProtocolError(f"Worker {worker} sent {type(message).__name__} in phase {self.phase.name}.")
        if isinstance(message, msg.PushUpdate):
            return self._push(worker, message)
        if worker in self._answers:
            raise ProtocolError(f"Worker {worker} answered twice in phase {self.phase.name}.")
        self._answers[worker] = message
        held: list[ins.Instruction] = [ins.HoldState(worker=worker)] if isinstance(message, msg.FenceReached) else []
        is_asked_alone = self.phase is Phase.ASKING
        if not is_asked_alone and len(self._answers) < len(self.workers):
            return held
        return [*held, *self._all_have_answered()]

    def _push(self, worker: int, message: msg.PushUpdate) -> list[ins.Instruction]:
        if worker in self._round or (self.phase is Phase.TRAINING and worker not in self._rounds.training):
            raise ProtocolError(f"Worker {worker} pushed without having been answered.")
        self._round[worker] = message
        self._pushed[worker] = self._with_pushed(worker, message)
        held = ins.HoldUpdate(worker=worker, n_samples=message.n_samples)
        if self.phase is Phase.FENCING:
            return [held]
        if not self._rounds.take(worker, is_last=self._synchronous and message.end_of_pass):
            return [held]
        self.phase = Phase.LISTENING
        return [held, self._push_round()]

    def _push_round(self) -> ins.PushRound:
        """Return one update for the round, as stale as its oldest part; it ends the pass if no worker continues."""
        pushes = [self._round[worker] for worker in sorted(self._round)]
        message = msg.PushUpdate(
            assignment=pushes[0].assignment,
            base_version=min(push.base_version for push in pushes),
            n_samples=sum(push.n_samples for push in pushes),
            sums={},
            end_of_pass=self._synchronous and not self._rounds.training,
        )
        workers = tuple(sorted(self._round))
        self._round.clear()
        return ins.PushRound(workers=workers, message=message)

    def _all_have_answered(self) -> list[ins.Instruction]:
        phase, self.phase = self.phase, Phase.LISTENING
        answers = [self._answers[worker] for worker in sorted(self._answers)]
        match phase:
            case Phase.STARTING:
                return [ins.SayReady(message=self._ready(answers))]
            case Phase.FENCING:
                ahead = [self._push_round()] if self._round else []
                return [*ahead, ins.HandIn(message=self._reached(answers))]
            case Phase.VALIDATING:
                return [ins.PassUp(message=self._validated(answers))]
        return [ins.PassUp(message=answers[0])]

    def _ready(self, answers: list[msg.WorkerReady]) -> msg.WorkerReady:
        first = answers[0]
        for worker, answer in zip(self.workers, answers, strict=True):
            check_same_model(worker, answer, first)
        return first.replaced(n_shard=sum(answer.n_shard for answer in answers))

    def _reached(self, answers: list[msg.FenceReached]) -> msg.FenceReached:
        workers = {}
        for worker, answer in zip(self.workers, answers, strict=True):
            trained = self._with_pushed(worker, answer)
            workers[worker] = answer.replaced(n_samples=trained.n_samples, sums={**trained.sums})
        self._pushed.clear()
        return msg.FenceReached(
            assignment=answers[0].assignment,
            position={},
            n_samples=sum(answer.n_samples for answer in answers),
            workers=workers,
        )

    def _with_pushed(self, worker: int, message: msg.PushUpdate | msg.FenceReached) -> Metrics:
        """Return the metrics of a message plus those its worker has pushed before."""
        return self._pushed.get(worker, Metrics()).merge(Metrics(message.n_samples, message.sums))

    def _validated(self, answers: list[msg.Validated]) -> msg.Validated:
        return msg.Validated(
            assignment=answers[0].assignment,
            n_samples=sum(answer.n_samples for answer in answers),
            sums={},
            workers=dict(zip(self.workers, answers, strict=True)),
        )
