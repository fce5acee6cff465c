"""Messages of an assignment, ordered by sender.

A message is plain data. It may carry one float32 vector, the *payload*, described in its docstring. Messages about an
assignment repeat its number, so that late messages are recognised and dropped.

    coordinator -> a master      RunFold, GoOn, PauseFold, PreemptFold, StopFold, FoldRecorded
    master -> coordinator        FoldStarted, EpochReported, FoldFinished, FoldStopped, FoldPaused, FoldFailed,
                                 TeamReformed
    master -> a worker           StartFold, Train, Fence, Validate, Measure, CallBack, Judge, Halt, EndFold
    worker -> master             WorkerReady, PushUpdate, FenceReached, Validated, Measured, CalledBack, Judged,
                                 FoldFailed
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
    """Base class of all messages."""


class AssignmentMessage(Message):
    """Base class of messages about an assignment, identified by its number."""

    assignment: int


# ---------------------------------------------------------------- coordinator and master


class RunFold(AssignmentMessage):
    """Train one fold of a trial, from its last valid checkpoint if there is one."""

    trial: int
    fold: int
    attempt: int
    point: dict[str, Json]
    #: True: after every epoch except the last, wait for GoOn, PauseFold or StopFold; after a resume, report the last
    #: epoch again and wait
    waits_for_decision: bool = False
    #: epochs that need a checkpoint regardless of the interval, because PauseFold may follow
    pause_epochs: list[int] = field(default_factory=list)
    #: number of the first epoch in the objective's own counting, 1 or 0; -1 before its first report
    first: int = -1
    #: term of this assignment, in a run that several jobs share: its files have a folder of their own; else 0
    term: int = 0
    #: (term, number) of the ended assignments of the fold, oldest first, whose checkpoint it continues from
    before: list[tuple[int, int]] = field(default_factory=list)


class GoOn(AssignmentMessage):
    """Train the next epoch; answers a report that waits."""


class PauseFold(AssignmentMessage):
    """End this assignment after the reported epoch, keeping its checkpoint; answers a report that waits."""


class StopFold(AssignmentMessage):
    """End this assignment now; its completed epochs count."""


class PreemptFold(AssignmentMessage):
    """End this assignment at the next epoch fence with a checkpoint; an objective without checkpoints continues."""


class FoldRecorded(AssignmentMessage):
    """Confirm that the journal has the end of this assignment; checkpoints no longer needed may be removed."""


class TeamReformed(Message):
    """Report that ranks of this team died and the remaining ones form a new team; sent by its first rank."""

    #: world ranks that are left, ascending
    alive: list[int]
    #: remaining ranks that train, the master first; empty if there are too few
    world_ranks: list[int]
    #: number of masters of the new team, see `Team.n_masters`
    n_masters: int
    #: last assignment that this rank received as a master, -1 for none; later ones are still in transit
    taken: int
    #: assignment that continues where it was, -1 for none; any other assignment of the team is lost
    goes_on: int
    #: how the dead rank's process ended, as text; empty if unknown
    how: str = ""


class FoldStarted(AssignmentMessage):
    """Report that all workers are ready; `epoch` epochs are already done (from a checkpoint).

    `waited_s`: idle seconds of this team between its last assignment and this one; None for the first.
    """

    epoch: int = 0
    waited_s: float | None = None


class EpochReported(AssignmentMessage):
    """Report that `epoch` epochs are done, with the finite metrics and figure of merit of the last one."""

    epoch: int
    metrics: dict[str, float]
    figure_of_merit: float | None = None
    checkpointed: bool = False
    #: True if the next epoch waits for GoOn, PauseFold or StopFold
    waits: bool = False
    #: False if there is no checkpoint to resume from after a PauseFold
    can_pause: bool = True
    #: True if the objective counts epochs from 0
    counts_from_0: bool = False


class FoldFinished(AssignmentMessage):
    """Report a trained fold: its finite figure of merit, and the metrics of the epoch it comes from."""

    figure_of_merit: float
    metrics: dict[str, float]
    n_epochs: int
    train_s: float
    reason: str = ""
    #: objective -> value, if there are several
    objectives: dict[str, float] = field(default_factory=dict)


class FoldStopped(AssignmentMessage):
    """Report that the fold ended after a StopFold, without a result."""


class FoldPaused(AssignmentMessage):
    """Report that the fold ended after a PauseFold, after `epoch` epochs."""

    epoch: int


class FoldFailed(AssignmentMessage):
    """Report that the fold cannot be trained, with reason, rank, host and traceback.

    A training rank sends it to its master, which forwards it to the coordinator.
    """

    reason: str
    traceback: str = ""
    world_rank: int = -1
    host: str = ""
    #: True if the attempt was lost for a reason unrelated to the trial, which is then tried again
    by_chance: bool = False


# ---------------------------------------------------------------- master and worker


class StartFold(AssignmentMessage):
    """Build the model of this point and load the shard of this worker (numbered from 1)."""

    trial: int
    fold: int
    point: dict[str, Json]
    worker: int
    n_workers: int
    #: True: compute the next batch while the master answers; False if both share a process
    overlap: bool = False


class WorkerReady(AssignmentMessage):
    """Report that model and shard are ready. Payload of worker 1: initial trainable weights, then float model state."""

    n_weights: int
    n_state: int
    #: training samples of all workers, and of this worker
    n_train: int
    n_shard: int
    has_validation: bool
    #: True if the model trains itself: updates are differences of its weights
    trains_itself: bool = False
    #: training options that the model itself brings, for `TrainingOptions.with_steps`
    steps: dict[str, Json] = field(default_factory=dict)
    #: True if this is worker 1 and has callbacks of the user
    calls_back: bool = False
    #: (name, shape) of each array of the model, in the order of the vector of weights
    layers: list[Json] = field(default_factory=list)


class Train(AssignmentMessage):
    """Adopt the answer and continue training. Payload: see `adopt`; at an epoch's start also the float model state.

    `adopt`: "weights" (the central weights), "difference" (the worker's own update comes back, see
    `core.update_rules.easgd`), or "nothing". When a checkpoint is resumed, `position` is the worker's position at the
    fence, and `restore` the folder of the checkpoint, which has the state of the worker's update rule. For a
    sub-master, `position` maps the numbers of its workers to their positions.
    """

    version: int
    #: training samples of all workers so far, over all epochs, as known to the master
    n_samples: int = 0
    adopt: Answer = Answer.WEIGHTS
    position: dict[str, Json] | None = None
    restore: str = ""
    #: True if `restore` is a checkpoint within an epoch, which also has each worker's float model state
    mid_epoch: bool = False
    #: learning rate factor requested by the user's callbacks; None: unchanged
    rate_factor: float | None = None
    #: handle of the shared weights that a worker updates (`core.block.exchange.shared_weights`) or the members of a
    #: worker group read; empty: unchanged
    shared: list[int] = field(default_factory=list)


class PushUpdate(AssignmentMessage):
    """Push an update computed at weights of `base_version`. Payload: the update (`core.update_rules.rule.WorkerHalf`).

    Without a payload: report the updates that the worker has applied itself since `Train`, because it stops.
    """

    base_version: int
    n_samples: int
    #: sums of the metrics over the samples of the update; a sub-master reports those of its workers at the fence
    sums: dict[str, float]
    #: True if the worker has completed a pass over its shard
    end_of_pass: bool
    #: staleness of the updates that the worker has applied itself (`StalenessStatistics.to_json`)
    applied: dict[str, int] = field(default_factory=dict)


class Fence(AssignmentMessage):
    """End the epoch: push the current update, then hand in the float model state and the position.

    Payload: the answer to the last push if `adopt` is "difference". `checkpoint`: folder for the state of the update
    rule; empty if no checkpoint is due. `mid_epoch`: the epoch may be incomplete, and continues later.
    """

    adopt: Answer = Answer.NOTHING
    checkpoint: str = ""
    mid_epoch: bool = False


class FenceReached(AssignmentMessage):
    """Hand in the state of a worker at a fence. Payload: float model state.

    `position`: data position and discrete model state. `load`: CPU, memory and GPU of the worker's process in this
    epoch, if measured (`engine.runtime.monitor`). `n_samples` and `sums` cover the batches since the last push, if the
    update rule does not push at a fence; `states`, as in `Metrics`, all batches since the last fence. A sub-master
    hands in the messages of its `workers` by number, with the metrics of the whole epoch, which its pushes do not
    contain; its own `n_samples` counts samples that were not pushed.
    """

    position: dict[str, Json]
    n_samples: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    states: dict[str, list[float]] = field(default_factory=dict)
    #: name -> fingerprint of the files that the worker has written, for the checkpoint's manifest
    files: dict[str, Json] = field(default_factory=dict)
    load: dict[str, float] = field(default_factory=dict)
    workers: "dict[int, FenceReached]" = field(default_factory=dict)

    def by_worker(self, sender: int) -> "dict[int, FenceReached]":
        """Return worker -> message: of the `sender` itself, or of the workers that it leads."""
        return self.workers or {sender: self}


class GroupStep(AssignmentMessage):
    """Compute the next gradient; from the leader of a worker group to its members.

    Payload: weights, unless they are unchanged since the last step or in shared memory (`Train.shared`).
    """


class Halt(AssignmentMessage):
    """End the epoch with the current step (allreduce); sent to one worker, which tells all others in this step."""


class Validate(AssignmentMessage):
    """Validate these weights on this worker's share. Payload: central weights, then float model state."""


class Validated(AssignmentMessage):
    """Report metric sums over the validation samples of a worker; a sub-master sends the messages of its `workers`.

    `states`: as in `Metrics`.
    """

    n_samples: int
    sums: dict[str, float]
    states: dict[str, list[float]] = field(default_factory=dict)
    workers: "dict[int, Validated]" = field(default_factory=dict)

    def by_worker(self, sender: int) -> "dict[int, Validated]":
        """Return worker -> message: of the `sender` itself, or of the workers that it leads."""
        return self.workers or {sender: self}


class Measure(AssignmentMessage):
    """Compute the metrics of the validation just done from the merged `states` of all workers; sent to worker 1.

    A metric with an empty state is computed on all validation samples, at the weights of the validation. `training`:
    merged states of the epoch's training samples.
    """

    states: dict[str, list[float]]
    training: dict[str, list[float]] = field(default_factory=dict)


class Measured(AssignmentMessage):
    """Report the finite metrics that Measure asked for."""

    metrics: dict[str, float]
    training: dict[str, float] = field(default_factory=dict)


class CallBack(AssignmentMessage):
    """Call the user's callbacks; sent to worker 1. Payload: central weights, float model state, then `n_state` bytes.

    `epoch` epochs are done, the last with these metrics; None if the worker begins: afresh, or with the state of the
    callbacks in these bytes. `is_last`: no epoch follows. `rate_factor`: current learning rate factor.
    """

    epoch: int
    metrics: dict[str, float] | None
    rate_factor: float
    is_last: bool = False
    n_state: int = 0


class CalledBack(AssignmentMessage):
    """Report what the callbacks request.

    Payload: if they changed the model, weights and float model state; then `n_state` bytes, the callbacks' own state.
    """

    rate_factor: float
    #: True: end the training
    stop: bool = False
    n_state: int = 0


class Judge(AssignmentMessage):
    """Call the user's figure of merit with the results of this fold (`core.trials.figure`); sent to worker 1."""

    fold: dict[str, Json]


class Judged(AssignmentMessage):
    """Report the finite number that the user's figure of merit returned."""

    figure_of_merit: float


class EndFold(AssignmentMessage):
    """Release the model: the assignment has ended."""


#: messages from workers to their master; all other messages between them go from the master to the workers
FROM_WORKERS = (WorkerReady, PushUpdate, FenceReached, Validated, Measured, CalledBack, Judged, FoldFailed)
