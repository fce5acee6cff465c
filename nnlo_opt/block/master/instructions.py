"""What `MasterState` wants `block.master.assignment` to do: plain values, one class for each kind of instruction."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialise:
    """All workers are ready: take the initial weights of worker 1 unless a checkpoint gave some; say so above."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyUpdate:
    """Apply the update that just came from `worker`, multiplied by `weight`."""

    worker: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldUpdate:
    """Keep the update that just came from `worker` until its round is complete."""

    worker: int
    n_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyRound:
    """Apply the updates held, in the order of `workers`, together."""

    workers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SendWeights:
    """Send the answer to train on; at the beginning of an epoch with the model state."""

    workers: tuple[int, ...]
    version: int
    with_state: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SendFence:
    """Ask for model state and position; `epoch` is about to end, and a checkpoint of it is due or not.

    `mid_epoch`: it may not be full, and goes on from that checkpoint.
    """

    workers: tuple[int, ...]
    epoch: int
    checkpoint: bool
    mid_epoch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldState:
    """Keep the model state and position that just came from `worker`."""

    worker: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendValidate:
    """Send the central weights and the averaged model state to all workers, to be validated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendCallBack:
    """Have worker 1 call the callbacks; `metrics` of the epoch that has ended, None at the beginning."""

    epoch: int
    metrics: dict[str, float] | None
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeWishes:
    """Take the learning rate, and the weights where there are any, that the callbacks have just answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepBest:
    """Keep a copy of weights and model state: the best so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportEpoch:
    """Tell the coordinator; write a checkpoint first if `checkpoint`. `waits`: its word is awaited."""

    epoch: int
    metrics: dict[str, float]
    checkpoint: bool
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveMidEpoch:
    """Write a checkpoint of the epoch under way, of which `n_samples` are trained."""

    n_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendJudge:
    """Have worker 1 call the user's figure of merit; `epoch` (from 1) is the one whose weights and metrics count."""

    epoch: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """The fold is trained."""

    figure_of_merit: float
    metrics: dict[str, float]
    n_epochs: int
    reason: str
    restore_best: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SendHalt:
    """Tell a worker to end the epoch."""

    worker: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """The assignment is over, as it was told to be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """The assignment is over, and its checkpoint is gone on with later."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """The fold cannot be trained."""

    reason: str
    traceback: str = ""
    world_rank: int = -1
    host: str = ""


Instruction: TypeAlias = (
    Initialise
    | ApplyUpdate
    | HoldUpdate
    | ApplyRound
    | SendWeights
    | SendFence
    | HoldState
    | SendValidate
    | SendCallBack
    | TakeWishes
    | KeepBest
    | ReportEpoch
    | SaveMidEpoch
    | SendJudge
    | Finish
    | SendHalt
    | Stopped
    | Paused
    | Fail
)
