"""Messages between coordinator and masters, and between the ranks of a team that trains, by who sends them to whom.

Plain data only; a float32 vector may travel beside a message (its *payload*, named in the docstring). Every message
about an assignment repeats its number, so that a late one is recognised and dropped.

    coordinator -> a master      RunFold, GoOn, PauseFold, PreemptFold, StopFold, FoldRecorded
    master -> coordinator        FoldStarted, EpochReported, FoldFinished, FoldStopped, FoldPaused, FoldFailed,
                                 TeamReformed
    master -> a worker           StartFold, Train, Fence, Validate, CallBack, Judge, Halt, EndFold
    worker -> master             WorkerReady, PushUpdate, FenceReached, Validated, CalledBack, Judged, WorkerFailed
    top master -> a sub-master       as to a worker, and back; a sub-master -> its workers   as from their master
    leader of a group -> a member   StartFold, Train, GroupStep, Fence, Validate, EndFold
    member -> leader             WorkerReady, FenceReached, Validated, WorkerFailed

Those of a run as a whole are in `comm.run_messages`, those between ranks that run an objective in
`comm.objective_messages`.
"""

from typing import Any, TypeAlias

from nnlo_opt.records import Record, field
from nnlo_opt.update_rules.rule import Answer

Json: TypeAlias = Any


class Message(Record, tag_field="message"):
    """Base of all messages."""


# ---------------------------------------------------------------- coordinator and master


class RunFold(Message):
    """Train one fold of a trial; go on from its last valid checkpoint if there is one."""

    assignment: int
    trial: int
    fold: int
    attempt: int
    point: dict[str, Json]
    #: after every epoch but the last, wait to hear GoOn, PauseFold or StopFold; resumed, ask first about the epoch done
    waits_for_decision: bool = False
    #: epochs that have a checkpoint whatever the interval, as the word may be to pause
    pause_epochs: list[int] = field(default_factory=list)


class GoOn(Message):
    """Of a reported epoch that waits for a word: train the next."""

    assignment: int


class PauseFold(Message):
    """Of a reported epoch that waits for a word: end this assignment, its checkpoint is needed."""

    assignment: int


class StopFold(Message):
    """End this assignment now; whatever it has reached counts."""

    assignment: int


class PreemptFold(Message):
    """End this assignment at its next epoch fence, with a checkpoint; an objective runs on."""

    assignment: int


class FoldRecorded(Message):
    """The journal has the end of this assignment: its checkpoints may go."""

    assignment: int


class TeamReformed(Message):
    """Ranks of this team have died, and the others have come together again; from the first of them."""

    #: world ranks that are left, ascending
    alive: list[int]
    #: those of them that train, the master first; empty where they are too few
    world_ranks: list[int]
    #: masters of the team, as `Team.n_masters`
    n_masters: int
    #: the last assignment that this rank has had as a master, -1 for none: a later one is still on its way to it
    taken: int
    #: the assignment that goes on where it was, -1 for none: any other that the team had is lost
    goes_on: int


class FoldStarted(Message):
    """All workers are ready; `epoch` epochs are already done (from a checkpoint).

    `waited_s`: time this team was idle between the end of its last assignment and this order; None for its first.
    """

    assignment: int
    epoch: int = 0
    waited_s: float | None = None


class EpochReported(Message):
    """`epoch` epochs are done, with these metrics and this figure of merit, all finite."""

    assignment: int
    epoch: int
    metrics: dict[str, float]
    figure_of_merit: float | None = None
    checkpointed: bool = False
    #: whether the next epoch waits for a word
    waits: bool = False


class FoldFinished(Message):
    """The fold is trained. `figure_of_merit` as returned, finite; `metrics` are those of the epoch it is from."""

    assignment: int
    figure_of_merit: float
    metrics: dict[str, float]
    n_epochs: int
    train_s: float
    reason: str = ""
    #: value of every objective by name, where there are several
    objectives: dict[str, float] = field(default_factory=dict)


class FoldStopped(Message):
    """The fold ended because of a StopFold; it has no result."""

    assignment: int


class FoldPaused(Message):
    """The fold ended because of a PauseFold, after `epoch` epochs."""

    assignment: int
    epoch: int


class FoldFailed(Message):
    """The fold cannot be trained: `reason` in a sentence, where it happened, and the text of the traceback."""

    assignment: int
    reason: str
    traceback: str = ""
    world_rank: int = -1
    host: str = ""


# ---------------------------------------------------------------- master and worker


class StartFold(Message):
    """Build the model of this point and load the shard of this worker (numbered from 1)."""

    assignment: int
    trial: int
    fold: int
    point: dict[str, Json]
    worker: int
    n_workers: int
    #: compute the next batch while the master answers; not where both share a process
    overlap: bool = False


class WorkerReady(Message):
    """Model and shard are there. Payload of worker 1: initial trainable weights, then float model state."""

    assignment: int
    n_weights: int
    n_state: int
    #: training samples of all workers, and of this one
    n_train: int
    n_shard: int
    has_validation: bool


class Train(Message):
    """Adopt the answer and train on. Payload: what `adopt` says; at an epoch's start also the float model state.

    `adopt`: "weights" (the central ones), "difference" (the worker's update come back, see `update_rules.easgd`), or
    "nothing". When a checkpoint is resumed, `position` is what the worker handed in at the fence, and `restore` the
    checkpoint's place, where the worker finds what its update rule remembers. To a sub-master, `position` holds those
    of its workers by number.
    """

    assignment: int
    version: int
    #: training samples of all workers, over all epochs, that the master knows of
    n_samples: int = 0
    adopt: Answer = Answer.WEIGHTS
    position: dict[str, Json] | None = None
    restore: str = ""
    #: whether that is a checkpoint of the middle of an epoch, where a worker finds its float model state too
    mid_epoch: bool = False
    #: what a user's callbacks want the learning rates to be multiplied by from now on; None: as before
    rate_factor: float | None = None
    #: handle of the weights that a worker moves itself (`block.exchange.shared_weights`), or of those that the members
    #: of a worker group read; empty: as before
    shared: list[int] = field(default_factory=list)


class PushUpdate(Message):
    """An update from weights of `base_version`. Payload: what the update rule pushes (`update_rules.rule.WorkerHalf`).

    Or, without payload, all updates that a worker has made itself since it was told to train, when it has to stop.
    """

    assignment: int
    base_version: int
    n_samples: int
    n_batches: int
    #: sums over the samples of the update; a sub-master tells those of its workers at the fence
    sums: dict[str, float]
    #: this worker has passed over its whole shard
    end_of_pass: bool
    #: staleness of the updates that it has made itself (`StalenessStatistics.to_json`); empty: there were none
    applied: dict[str, int] = field(default_factory=dict)


class Fence(Message):
    """The epoch is full: push what is computed, then hand in the float model state and the position.

    Payload: the answer to the last push where `adopt` says "difference". `checkpoint`: the folder to write to what the
    update rule remembers; empty where no checkpoint is due. `mid_epoch`: the epoch may not be full, and goes on later.
    """

    assignment: int
    adopt: Answer = Answer.NOTHING
    checkpoint: str = ""
    mid_epoch: bool = False


class FenceReached(Message):
    """Payload: float model state. `position`: data position and discrete model state; `files`: what was written.

    `load`: what the worker's process has taken of its machine since the epoch began (`runtime.monitor`), if measured.
    `n_samples` and `sums` are of batches trained since the last push, where the rule does not push at a fence.
    A sub-master hands in the same fields for each of its `workers`, by number, there with the figures of the whole
    epoch, which its pushes leave out; its own `n_samples` are those that were in no push.
    """

    assignment: int
    position: dict[str, Json]
    n_samples: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    #: file name -> fingerprint, for the checkpoint's manifest
    files: dict[str, Json] = field(default_factory=dict)
    load: dict[str, float] = field(default_factory=dict)
    workers: "dict[int, FenceReached]" = field(default_factory=dict)

    def by_worker(self, sender: int) -> "dict[int, FenceReached]":
        """What each worker has handed in: the `sender` itself, or those that it leads."""
        return self.workers or {sender: self}


class GroupStep(Message):
    """From the leader of a worker group to its other ranks: compute the next gradient.

    Payload: weights, unless they are those of the last step, or lie in memory that the ranks share (`Train.shared`).
    """

    assignment: int


class Halt(Message):
    """End the epoch with the step under way: sent to one worker, which tells the others in that step (allreduce)."""

    assignment: int


class Validate(Message):
    """Validate these weights on this worker's share. Payload: central weights, then float model state."""

    assignment: int


class Validated(Message):
    """Sums over the validation samples of this worker; a sub-master's are in those of its `workers`, by number."""

    assignment: int
    n_samples: int
    sums: dict[str, float]
    workers: "dict[int, Validated]" = field(default_factory=dict)

    def by_worker(self, sender: int) -> "dict[int, Validated]":
        """What each worker has found: the `sender` itself, or those that it leads."""
        return self.workers or {sender: self}


class CallBack(Message):
    """To worker 1: call the user's callbacks. Payload: central weights, then float model state.

    `epoch` epochs are done, the last with these metrics (None: the training begins); `is_last`: no other follows.
    `rate_factor`: what the learning rates are multiplied by so far.
    """

    assignment: int
    epoch: int
    metrics: dict[str, float] | None
    rate_factor: float
    is_last: bool = False


class CalledBack(Message):
    """What the callbacks want. Payload, where they have changed the model: weights, then float model state."""

    assignment: int
    rate_factor: float
    #: end the training
    stop: bool = False


class Judge(Message):
    """To worker 1: call the user's figure of merit with what the training of this fold gave (`trials.figure`)."""

    assignment: int
    fold: dict[str, Json]


class Judged(Message):
    """What the user's figure of merit returned, a finite number."""

    assignment: int
    figure_of_merit: float


class EndFold(Message):
    """The assignment is over: release the model."""

    assignment: int


class WorkerFailed(Message):
    """This worker cannot train the trial."""

    assignment: int
    reason: str
    traceback: str = ""
    world_rank: int = -1
    host: str = ""


#: what workers send to their master; all else between them goes the other way
FROM_WORKERS = (WorkerReady, PushUpdate, FenceReached, Validated, CalledBack, Judged, WorkerFailed)
