"""Messages between ranks that run user code: an objective, or a controller with its workers.

root -> another rank    CallObjective, ObjectiveProceed; FoldFailed if the call can no longer succeed
another rank -> root    ObjectiveArrived, ObjectiveReturned; FoldFailed if the objective raised

worker -> controller    ControlRequest, ShareParams, Leave
controller -> worker    ControlAnswer, ParamsShared, ParamsRefused, Dismissed
"""

from nnlo_opt.core.base.records import field
from nnlo_opt.core.comm.messages import AssignmentMessage, Json, Message


class CallObjective(AssignmentMessage):
    """Call the objective at this point, together with all ranks of the block; `names`: all parameters of the space.

    `saved`: name of the last save, or empty; `epoch`: its epoch in the objective's own counting. `first`: number of the
    first epoch in that counting, 1 or 0; -1 before its first report or save. `term`: as in RunFold.
    """

    point: dict[str, Json]
    trial: int = 0
    fold: int = 0
    names: list[str] = field(default_factory=list)
    saved: str = ""
    epoch: int = 0
    first: int = -1
    term: int = 0


class ObjectiveArrived(AssignmentMessage):
    """Report that this rank has reached the collective call `at` and waits for the others; `own`: its contribution."""

    at: str
    own: Json = None


class ObjectiveProceed(AssignmentMessage):
    """Perform the collective call that all ranks have reached; `answer` is the same on all ranks."""

    answer: Json = None


class ObjectiveReturned(AssignmentMessage):
    """Report that the objective has returned on this rank."""


# ---------------------------------------------------------------- a controller and its workers


class ControlRequest(Message):
    """Ask the controller to handle a request; ControlAnswer is the reply.

    Requests and answers are JSON text, because a user's numbers need not be finite.
    """

    request: str
    info: str


class ControlAnswer(Message):
    """Return the answer of the controller to a request, as JSON."""

    answer: str


class ShareParams(Message):
    """Request shared parameters. Payload: bytes of the worker's own parameters, padded.

    `layout`: type and shape of each array. `is_first`: this worker's parameters initialise the shared ones.
    """

    layout: Json
    is_first: bool


class ParamsShared(Message):
    """Join the memory at `place`. Payload: bytes of the initial shared parameters."""

    place: list[int]


class ParamsRefused(Message):
    """Report that parameters cannot be shared. `is_reported`: another worker reports the reason."""

    reason: str
    is_reported: bool


class Leave(Message):
    """Report that this worker will make no more requests."""


class Dismissed(Message):
    """Allow a worker to leave MPI: every worker has left or died."""
