"""All messages, by who sends them to whom.

Plain data only; a float32 vector may travel beside a message (its *payload*, named in the docstring). Every message
about an assignment repeats its number, so that a late one is recognised and dropped.

    coordinator -> every rank    OpenRun, Shutdown
    coordinator -> a trainer     Inspect, ExportModel         trainer -> coordinator   Inspected, ModelExported
    coordinator -> a master      RunFold, StopFold, FoldRecorded
    master -> coordinator        FoldStarted, EpochReported, FoldFinished, FoldStopped, FoldFailed
    master -> a worker           StartFold, Train, Fence, Validate, EndFold
    worker -> master             WorkerReady, PushUpdate, FenceReached, Validated, WorkerFailed
    between ranks that run an objective    CallObjective, ObjectiveArrived, ObjectiveProceed, ObjectiveReturned,
                                           ObjectiveFailed
"""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

Json: TypeAlias = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Base of all messages."""


# ---------------------------------------------------------------- coordinator and ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenRun(Message):
    """The run is open: its directory, and what every rank has to know of it."""

    directory: str
    settings: dict[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shutdown(Message):
    """Leave with this exit code."""

    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspect(Message):
    """Read the model module and the data; `report`: say what they are (one rank), else only be ready.

    `space`: the search space where it does not come from the model module.
    """

    report: bool
    space: Json = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected(Message):
    """What a trainer rank found: `findings` as plain data, or `error`, the sentence for the user."""

    findings: dict[str, Json] = field(default_factory=dict)
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportModel(Message):
    """Build the model at `point`, load `weights_path` into it and save it as `path`."""

    point: dict[str, Json]
    weights_path: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelExported(Message):
    """The model is at `path`; or `error` says why not."""

    path: str
    error: str = ""


# ---------------------------------------------------------------- coordinator and master


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFold(Message):
    """Train one fold of a trial; go on from its last valid checkpoint if there is one."""

    assignment: int
    trial: int
    fold: int
    attempt: int
    point: dict[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class StopFold(Message):
    """End this assignment now; whatever it has reached counts."""

    assignment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldRecorded(Message):
    """The journal has the end of this assignment: its checkpoints may go."""

    assignment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldStarted(Message):
    """All workers are ready; `epoch` epochs are already done (from a checkpoint).

    `waited_s`: time this team was idle between the end of its last assignment and this order; None for its first.
    """

    assignment: int
    epoch: int = 0
    waited_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochReported(Message):
    """`epoch` epochs are done, with these metrics (finite)."""

    assignment: int
    epoch: int
    metrics: dict[str, float]
    checkpointed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldFinished(Message):
    """The fold is trained. `figure_of_merit` as returned, finite; `metrics` are those of the epoch it is from."""

    assignment: int
    figure_of_merit: float
    metrics: dict[str, float]
    n_epochs: int
    train_s: float
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldStopped(Message):
    """The fold ended because of a StopFold; it has no result."""

    assignment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldFailed(Message):
    """The fold cannot be trained: `reason` in a sentence, where it happened, and the text of the traceback."""

    assignment: int
    reason: str
    traceback: str = ""
    world_rank: int = -1
    host: str = ""


# ---------------------------------------------------------------- master and worker


@dataclass(frozen=True, slots=True, kw_only=True)
class StartFold(Message):
    """Build the model of this point and load the shard of this worker (numbered from 1)."""

    assignment: int
    trial: int
    fold: int
    point: dict[str, Json]
    worker: int
    n_workers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerReady(Message):
    """Model and shard are there. Payload of worker 1: initial trainable weights, then float model state."""

    assignment: int
    n_weights: int
    n_state: int
    #: training samples of all workers, and of this one
    n_train: int
    n_shard: int
    has_validation: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Train(Message):
    """Adopt the central weights and train on. Payload: weights; at an epoch's start also float model state.

    `position` (only when a checkpoint is resumed) is what the worker handed in at the fence.
    """

    assignment: int
    version: int
    position: dict[str, Json] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PushUpdate(Message):
    """An update from weights of `base_version`. Payload: the gradient (see `algorithms.downpour`)."""

    assignment: int
    base_version: int
    n_samples: int
    n_batches: int
    #: sums over the samples of the update
    sums: dict[str, float]
    #: this worker has passed over its whole shard
    end_of_pass: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence(Message):
    """The epoch is full: hand in the float model state and the position."""

    assignment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceReached(Message):
    """Payload: float model state. `position`: data position and discrete model state."""

    assignment: int
    position: dict[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Validate(Message):
    """Validate these weights on this worker's share. Payload: weights, then float model state."""

    assignment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Validated(Message):
    """Sums over the validation samples of this worker."""

    assignment: int
    n_samples: int
    sums: dict[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndFold(Message):
    """The assignment is over: release the model."""

    assignment: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerFailed(Message):
    """This worker cannot train the trial."""

    assignment: int
    reason: str
    traceback: str = ""
    world_rank: int = -1
    host: str = ""


# ---------------------------------------------------------------- ranks of a block that runs an objective


@dataclass(frozen=True, slots=True, kw_only=True)
class CallObjective(Message):
    """Call the objective at this point, together with all ranks of the block."""

    assignment: int
    point: dict[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveArrived(Message):
    """This rank waits for the others in a collective call of the objective: `at` says in which."""

    assignment: int
    at: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveProceed(Message):
    """All ranks have arrived at the same call: make it. `go_on` is the answer of `report`."""

    assignment: int
    go_on: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveReturned(Message):
    """This rank is out of the objective; `error` is empty unless it raised."""

    assignment: int
    error: str = ""
    traceback: str = ""
    world_rank: int = -1
    host: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveFailed(Message):
    """The call cannot succeed any more (a rank raised, or the ranks disagree): give it up."""

    assignment: int
    reason: str
    world_rank: int = -1


def _all_types(cls: type[Message]) -> dict[str, type[Message]]:
    found: dict[str, type[Message]] = {}
    for sub in cls.__subclasses__():
        found[sub.__name__] = sub
        found.update(_all_types(sub))
    return found


#: message classes by name: what the codec accepts, and nothing else
MESSAGE_TYPES: dict[str, type[Message]] = _all_types(Message)
