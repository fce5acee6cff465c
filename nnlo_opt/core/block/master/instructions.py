"""Instructions returned by the state machines in `master`, carried out by their shells: plain values."""

from nnlo_opt.core.base.records import Frozen, field
from nnlo_opt.core.comm import messages as msg


class Instruction(Frozen):
    """Base class of all instructions."""


# ---------------------------------------------------------------- to a master or a sub-master


class HoldUpdate(Instruction):
    """Keep the update just received from `worker` until its round is complete."""

    worker: int
    n_samples: int


class HoldState(Instruction):
    """Keep the model state and position just received from `worker`."""

    worker: int


# ---------------------------------------------------------------- of `MasterState`, to a master


class Initialise(Instruction):
    """Take the weights of a checkpoint or of worker 1; report to the coordinator that all workers are ready."""

    epoch: int


class ApplyUpdate(Instruction):
    """Apply the update just received from `worker`, multiplied by `weight`."""

    worker: int
    weight: float


class ApplyRound(Instruction):
    """Apply the updates held, in the order of `workers`, together."""

    workers: tuple[int, ...]


class SendWeights(Instruction):
    """Send the answer to train on; at the beginning of an epoch with the model state."""

    workers: tuple[int, ...]
    version: int
    with_state: bool = False


class SendFence(Instruction):
    """Ask for model state and position at the end of `epoch`.

    `checkpoint`: a checkpoint of the epoch is due. `mid_epoch`: the epoch may be incomplete, and resumes from here
    later.
    """

    workers: tuple[int, ...]
    epoch: int
    checkpoint: bool
    mid_epoch: bool = False


class SendValidate(Instruction):
    """Send the central weights and the averaged model state to all workers for validation."""


class SendMeasure(Instruction):
    """Have worker 1 compute metrics from all workers' states of validation and training samples."""

    states: dict[str, list[float]]
    training: dict[str, list[float]] = field(default_factory=dict)


class SendCallBack(Instruction):
    """Have worker 1 call the callbacks with the `metrics` of the epoch that has ended; None when it begins."""

    epoch: int
    metrics: dict[str, float] | None
    is_last: bool


class TakeRequests(Instruction):
    """Adopt the learning rate just requested by the callbacks, their state, and the weights if they changed them."""


class KeepBest(Instruction):
    """Keep a copy of weights and model state, the best so far."""


class ReportEpoch(Instruction):
    """Report the epoch to the coordinator, after a checkpoint if `checkpoint`; `waits` for its decision if true."""

    epoch: int
    metrics: dict[str, float]
    checkpoint: bool
    waits: bool = False


class SaveMidEpoch(Instruction):
    """Write a checkpoint of the current epoch, of which `n_samples` are trained."""

    n_samples: int


class SendJudge(Instruction):
    """Have worker 1 call the user's figure of merit; the weights and `metrics` of `epoch` (from 1) count."""

    epoch: int
    metrics: dict[str, float]


class FinishFold(Instruction):
    """End the assignment: the fold is trained."""

    figure_of_merit: float
    metrics: dict[str, float]
    n_epochs: int
    reason: str
    #: epoch whose weights are kept and whose metrics count, from 1
    kept_epoch: int
    restore_best: bool


class SendHalt(Instruction):
    """Have a worker end the epoch."""

    worker: int


class End(Instruction):
    """End the assignment without a result, and send the coordinator `message` with the reason."""

    message: msg.FoldStopped | msg.FoldPaused | msg.FoldFailed


# ---------------------------------------------------------------- of `GroupState`, to a sub-master


class SayReady(Instruction):
    """Send up, with the initial weights if a worker has sent them."""

    message: msg.WorkerReady


class Adopt(Instruction):
    """Adopt the answer just received from the top master."""

    message: msg.Train | msg.Fence


class PassDown(Instruction):
    """Send to these workers, with the vector just received."""

    workers: tuple[int, ...]
    message: msg.Message


class PassUp(Instruction):
    """Send up, with the vector just received."""

    message: msg.Message


class Answer(Instruction):
    """Send to these workers, each with the answer to its last update."""

    workers: tuple[int, ...]
    message: msg.Train | msg.Fence


class PushRound(Instruction):
    """Combine the held updates of `workers`, in this order, and send the result up."""

    workers: tuple[int, ...]
    message: msg.PushUpdate


class HandIn(Instruction):
    """Send up, with the mean of the held model states."""

    message: msg.FenceReached
