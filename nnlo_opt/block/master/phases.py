"""The phases that an assignment goes through at its master (`block.master.state`).

    STARTING     workers build the model and load their shards
    TRAINING     updates come in; asynchronously each is applied at once, synchronously a round at a time; or workers
                 make theirs themselves, and come in once they have to stop
    FENCING      the epoch is full: each worker's next update is its last, then it hands in its model state; one that
                 overlaps has another update computed by then, which it pushes before
    VALIDATING   every worker validates the same version on its share
    JUDGING      the user's figure of merit, where there is one, is called on worker 1 when all is trained
    CALLING_BACK the user's callbacks, where there are any, run on worker 1: before the first epoch and after each
    AWAITING     the epoch is reported, and the coordinator is to say what becomes of the trial
    HALTING      allreduce: told to stop, the workers end the step under way together, as none may miss it
    OVER         finished, failed, paused or stopped

Preempted, an assignment ends at a fence in the middle of an epoch: from TRAINING to FENCING as soon as no worker waits
for others, and from there to OVER. It goes on with that very epoch.
"""

from enum import Enum, auto

from nnlo_opt.comm import messages as msg


class Phase(Enum):
    """Where an assignment stands; see the top of the module."""

    STARTING = auto()
    TRAINING = auto()
    FENCING = auto()
    VALIDATING = auto()
    CALLING_BACK = auto()
    JUDGING = auto()
    AWAITING = auto()
    HALTING = auto()
    OVER = auto()


#: which messages of a worker each phase takes; anything else is a bug of ours
ACCEPTED: dict[Phase, frozenset[type[msg.Message]]] = {
    Phase.STARTING: frozenset({msg.WorkerReady, msg.WorkerFailed}),
    Phase.TRAINING: frozenset({msg.PushUpdate, msg.WorkerFailed}),
    Phase.FENCING: frozenset({msg.PushUpdate, msg.FenceReached, msg.WorkerFailed}),
    Phase.VALIDATING: frozenset({msg.Validated, msg.WorkerFailed}),
    Phase.CALLING_BACK: frozenset({msg.CalledBack, msg.WorkerFailed}),
    Phase.JUDGING: frozenset({msg.Judged, msg.WorkerFailed}),
    Phase.AWAITING: frozenset({msg.WorkerFailed}),
    Phase.HALTING: frozenset({msg.PushUpdate, msg.WorkerFailed}),
    Phase.OVER: frozenset(),
}

#: in which workers may be exchanged for others, as long as they do not wait for each other
REGROUPING = frozenset({Phase.STARTING, Phase.TRAINING, Phase.FENCING, Phase.VALIDATING})
