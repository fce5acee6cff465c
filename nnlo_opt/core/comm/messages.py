"""Messages of an assignment, ordered by sender.

A message holds plain data only. One float32 vector may travel beside it, the *payload*, which the docstring names.
Every message about an assignment repeats its number, so that a late message is recognised and dropped.

    coordinator -> a master      RunFold, GoOn, PauseFold, PreemptFold, StopFold, FoldRecorded
    master -> coordinator        FoldStarted, EpochReported, FoldFinished, FoldStopped, FoldPaused, FoldFailed,
                                 TeamReformed
    master -> a worker           StartFold, Train, Fence, Validate, CallBack, Judge, Halt, EndFold
    worker -> master             WorkerReady, PushUpdate, FenceReached, Validated, CalledBack, Judged, FoldFailed
    top master -> a sub-master       as to a worker, and back; a sub-master -> its workers   as from their master
    leader of a group -> a member    StartFold, Train, GroupStep, Fence, Validate, EndFold
    member -> leader             WorkerReady, FenceReached, Validated, FoldFailed

Messages about the run as a whole are in `core.comm.run_messages`, messages between ranks that run an objective in
`core.comm.objective_messages`.
"""

from typing import Any, TypeAlias

from nnlo_opt.core.base.records import Record, field
from nnlo_opt.core.update_rules.rule import Answer

Json: TypeAlias = Any


class Message(Record, tag_field="message"):
    """Base of all messages."""


class AssignmentMessage(Message):
    """Base of the messages about an assignment, which repeat its number."""

    assignment: int


# ---------------------------------------------------------------- coordinator and master


class RunFold(AssignmentMessage):
    """Train one fold of a trial; resume its last valid checkpoint if there is one."""

    trial: int
    fold: int
    attempt: int
    point: dict[str, Json]
    #: True: after every epoch but the last, wait for GoOn, PauseFold or StopFold; if resumed, ask about the last epoch
    waits_for_decision: bool = False
    #: epochs that have a checkpoint at any interval, as PauseFold may follow
    pause_epochs: list[int] = field(default_factory=list)
    #: number of the first epoch as the code of the trial counts, 1 or 0; -1 before its first report
    first: int = -1


class GoOn(AssignmentMessage):
    """Train the epoch after the reported one, which waits for a decision."""


class PauseFold(AssignmentMessage):
    """End this assignment after the reported epoch, which waits for a decision; its checkpoint is needed."""


class StopFold(AssignmentMessage):
    """End this assignment now; the epochs that it has reached count."""


class PreemptFold(AssignmentMessage):
    """End this assignment at its next epoch fence, with a checkpoint; an objective that saves none continues."""


class FoldRecorded(AssignmentMessage):
    """Remove the checkpoints of this assignment if they are not needed, as the journal has its end."""


class TeamReformed(Message):
    """Report that ranks of this team have died and the remaining ranks form a team; sent by the first of these."""

    #: world ranks that are left, ascending
    alive: list[int]
    #: remaining ranks that train, the master first; empty if they are too few
    world_ranks: list[int]
    #: masters of the team, as `Team.n_masters`
    n_masters: int
    #: last assignment that this rank has had as a master, -1 for none: a later one is still on its way
    taken: int
    #: assignment that continues at the point it had reached, -1 for none: any other assignment of the team is lost
    goes_on: int
    #: how the process of its dead rank ended, in words; empty if that is not known
    how: str = ""


class FoldStarted(AssignmentMessage):
    """Report that all workers are ready; `epoch` epochs are already done (from a checkpoint).

    `waited_s`: seconds for which this team was idle between its last assignment and this order; None for its first.
    """

    epoch: int = 0
    waited_s: float | None = None


class EpochReported(AssignmentMessage):
    """Report that `epoch` epochs are done, with the metrics and the figure of merit of the last, all finite."""

    epoch: int
    metrics: dict[str, float]
    figure_of_merit: float | None = None
    checkpointed: bool = False
    #: True if the next epoch waits for GoOn, PauseFold or StopFold
    waits: bool = False
    #: False: nothing is saved by which the fold could go on after a PauseFold
    can_pause: bool = True
    #: True: the code of the trial calls this epoch by the number before
    counts_from_0: bool = False


class FoldFinished(AssignmentMessage):
    """Report a trained fold: its figure of merit, finite, and the metrics of the epoch which gave that figure."""

    figure_of_merit: float
    metrics: dict[str, float]
    n_epochs: int
    train_s: float
    reason: str = ""
    #: value of every objective by name, if there are several
    objectives: dict[str, float] = field(default_factory=dict)


class FoldStopped(AssignmentMessage):
    """Report that the fold ended because of a StopFold; it has no result."""


class FoldPaused(AssignmentMessage):
    """Report that the fold ended because of a PauseFold, after `epoch` epochs."""

    epoch: int


class FoldFailed(AssignmentMessage):
    """Report that the fold cannot be trained: the reason in a sentence, rank, host, text of the traceback.

    A rank that trains sends it to its master, which sends it on to the coordinator.
    """

    reason: str
    traceback: str = ""
    world_rank: int = -1
    host: str = ""
    #: the attempt is lost for a reason that says nothing of the trial, so that it is tried again
    by_chance: bool = False


# ---------------------------------------------------------------- master and worker


class StartFold(AssignmentMessage):
    """Build the model of this point and load the shard of this worker (numbered from 1)."""

    trial: int
    fold: int
    point: dict[str, Json]
    worker: int
    n_workers: int
    #: True: compute the next batch while the master answers; False if both are in one process
    overlap: bool = False


class WorkerReady(AssignmentMessage):
    """Report that model and shard are ready. Payload of worker 1: initial trainable weights, then float model state."""

    n_weights: int
    n_state: int
    #: training samples of all workers, and of this worker
    n_train: int
    n_shard: int
    has_validation: bool
    #: the model makes its own steps: updates are made of differences of its weights
    trains_itself: bool = False
    #: training options that the model itself brings, for `TrainingOptions.with_steps`
    steps: dict[str, Json] = field(default_factory=dict)
    #: name and shape of each array of the model, in their order in the vector of weights
    layers: list[Json] = field(default_factory=list)


class Train(AssignmentMessage):
    """Adopt the answer and continue training. Payload: see `adopt`; at an epoch's start also the float model state.

    `adopt`: "weights" (the central weights), "difference" (the worker's own update comes back, see
    `core.update_rules.easgd`), or "nothing". If a checkpoint is resumed, `position` is the position that the worker
    handed in at the fence, and `restore` the folder of the checkpoint, which has the state of the worker's update rule.
    In a message to a sub-master, `position` holds the positions of its workers by number.
    """

    version: int
    #: training samples of all workers over all epochs, as far as the master knows
    n_samples: int = 0
    adopt: Answer = Answer.WEIGHTS
    position: dict[str, Json] | None = None
    restore: str = ""
    #: True if `restore` is a checkpoint of the middle of an epoch, which also has each worker's float model state
    mid_epoch: bool = False
    #: factor of the learning rates that a user's callbacks ask for from now on; None: as before
    rate_factor: float | None = None
    #: handle of the weights that a worker updates itself (`core.block.exchange.shared_weights`), or of the weights that
    #: the members of a worker group read; empty: as before
    shared: list[int] = field(default_factory=list)


class PushUpdate(AssignmentMessage):
    """Push an update of weights of `base_version`. Payload: the update (`core.update_rules.rule.WorkerHalf`).

    Without a payload: report all updates that the worker has applied itself since `Train`, as it has to stop.
    """

    base_version: int
    n_samples: int
    #: sums over the samples of the update; a sub-master reports the sums of its workers at the fence
    sums: dict[str, float]
    #: True if the worker has passed over its whole shard
    end_of_pass: bool
    #: staleness of the updates that the worker has applied itself (`StalenessStatistics.to_json`); empty: none
    applied: dict[str, int] = field(default_factory=dict)


class Fence(AssignmentMessage):
    """End the epoch: push the update that is computed, then hand in the float model state and the position.

    Payload: the answer to the last push if `adopt` is "difference". `checkpoint`: folder for the state of the update
    rule; empty if no checkpoint is due. `mid_epoch`: the epoch may not be full, and continues later.
    """

    adopt: Answer = Answer.NOTHING
    checkpoint: str = ""
    mid_epoch: bool = False


class FenceReached(AssignmentMessage):
    """Hand in the state of a worker at a fence. Payload: float model state.

    `position`: data position and discrete model state. `load`: CPU, memory and GPU of the worker's process since the
    epoch began, if measured (`engine.runtime.monitor`). `n_samples` and `sums` are of batches trained since the last
    push, if the update rule does not push at a fence. A sub-master hands in the messages of its `workers` by number,
    with the figures of the whole epoch, which are not in its pushes; its own `n_samples` were in no push.
    """

    position: dict[str, Json]
    n_samples: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    #: files that the worker has written, name -> fingerprint, for the checkpoint's manifest
    files: dict[str, Json] = field(default_factory=dict)
    load: dict[str, float] = field(default_factory=dict)
    workers: "dict[int, FenceReached]" = field(default_factory=dict)

    def by_worker(self, sender: int) -> "dict[int, FenceReached]":
        """Return the message of each worker by number: of the `sender`, or of the workers that it leads."""
        return self.workers or {sender: self}


class GroupStep(AssignmentMessage):
    """Compute the next gradient; from the leader of a worker group to its members.

    Payload: weights, unless they are the weights of the last step, or in memory of all members (`Train.shared`).
    """


class Halt(AssignmentMessage):
    """End the epoch with the present step: sent to one worker, which tells all workers in this step (allreduce)."""


class Validate(AssignmentMessage):
    """Validate these weights on this worker's share. Payload: central weights, then float model state."""


class Validated(AssignmentMessage):
    """Report sums over the validation samples of a worker; a sub-master sends the messages of its `workers`."""

    n_samples: int
    sums: dict[str, float]
    workers: "dict[int, Validated]" = field(default_factory=dict)

    def by_worker(self, sender: int) -> "dict[int, Validated]":
        """Return the message of each worker by number: of the `sender`, or of the workers that it leads."""
        return self.workers or {sender: self}


class CallBack(AssignmentMessage):
    """Call the user's callbacks; sent to worker 1. Payload: central weights, then float model state.

    `epoch` epochs are done, the last with these metrics (None: the training begins); `is_last`: no epoch follows.
    `rate_factor`: present factor of the learning rates.
    """

    epoch: int
    metrics: dict[str, float] | None
    rate_factor: float
    is_last: bool = False


class CalledBack(AssignmentMessage):
    """Report the requests of the callbacks. Payload if they changed the model: weights, then float model state."""

    rate_factor: float
    #: True: end the training
    stop: bool = False


class Judge(AssignmentMessage):
    """Call the user's figure of merit with the results of this fold (`core.trials.figure`); sent to worker 1."""

    fold: dict[str, Json]


class Judged(AssignmentMessage):
    """Report the number that the user's figure of merit returned; it is finite."""

    figure_of_merit: float


class EndFold(AssignmentMessage):
    """Release the model, as the assignment is over."""


#: messages from workers to their master; all other messages between them go the other way
FROM_WORKERS = (WorkerReady, PushUpdate, FenceReached, Validated, CalledBack, Judged, FoldFailed)
