"""Instructions of `MasterState` to `master.master`: plain values, one class for each kind."""

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class Initialise:
    """Take the weights of a checkpoint or of worker 1; report to the coordinator that all workers are ready."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyUpdate:
    """Apply the update that has just come from `worker`, multiplied by `weight`."""

    worker: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldUpdate:
    """Keep the update that has just come from `worker` until its round is complete."""

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
    """Ask for model state and position at the end of `epoch`.

    `checkpoint`: a checkpoint of the epoch is due. `mid_epoch`: the epoch may not be full, and continues from it later.
    """

    workers: tuple[int, ...]
    epoch: int
    checkpoint: bool
    mid_epoch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldState:
    """Keep the model state and position that have just come from `worker`."""

    worker: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendValidate:
    """Send the central weights and the averaged model state to all workers for validation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SendCallBack:
    """Have worker 1 call the callbacks with the `metrics` of the epoch that has ended; None at the beginning."""

    epoch: int
    metrics: dict[str, float] | None
    is_last: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeRequests:
    """Take over the learning rate that the callbacks have just answered, and their weights if they changed these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepBest:
    """Keep a copy of weights and model state, the best so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportEpoch:
    """Report the epoch to the coordinator, after a checkpoint if `checkpoint`; `waits` for its decision if true."""

    epoch: int
    metrics: dict[str, float]
    checkpoint: bool
    waits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveMidEpoch:
    """Write a checkpoint of the epoch under way, with `n_samples` of it trained."""

    n_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SendJudge:
    """Have worker 1 call the user's figure of merit; the weights and `metrics` of `epoch` (from 1) count."""

    epoch: int
    metrics: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """End the assignment: the fold is trained."""

    figure_of_merit: float
    metrics: dict[str, float]
    n_epochs: int
    reason: str
    restore_best: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SendHalt:
    """Have a worker end the epoch."""

    worker: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stopped:
    """End the assignment without a result, as the coordinator asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Paused:
    """End the assignment, which continues later from its checkpoint."""

    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """End the assignment: the fold cannot be trained."""

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
    | TakeRequests
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
