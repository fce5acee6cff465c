"""Messages between ranks that run code of a user: an objective, or a controller with its workers.

root -> another rank    CallObjective, ObjectiveProceed; FoldFailed if the call cannot succeed any more
another rank -> root    ObjectiveArrived, ObjectiveReturned; FoldFailed if the objective raised

worker -> controller    ControlRequest, ShareParams, Leave
controller -> worker    ControlAnswer, ParamsShared, ParamsRefused, Dismissed
"""

from nnlo_opt.core.base.records import field
from nnlo_opt.core.comm.messages import AssignmentMessage, Json, Message


class CallObjective(AssignmentMessage):
    """Call the objective at this point, together with all ranks of the block; `names`: all parameters of the space.

    `saved`: name of the last save, whose epoch is `epoch` by the trial's own count; empty if there is none.
    `first`: number of its first epoch by that count, 1 or 0; -1 before its first report or save.
    """

    point: dict[str, Json]
    trial: int = 0
    fold: int = 0
    names: list[str] = field(default_factory=list)
    saved: str = ""
    epoch: int = 0
    first: int = -1


class ObjectiveArrived(AssignmentMessage):
    """Report that this rank has arrived at the collective call `at`, and waits for all ranks; `own`: what it brings."""

    at: str
    own: Json = None


class ObjectiveProceed(AssignmentMessage):
    """Make the collective call at which all ranks have arrived; `answer` is the same for all."""

    answer: Json = None


class ObjectiveReturned(AssignmentMessage):
    """Report that the objective has returned on this rank."""


# ---------------------------------------------------------------- a controller and its workers


class ControlRequest(Message):
    """Ask the controller to handle a request; ControlAnswer is the reply.

    Requests and answers are JSON in text, as a user's numbers need not be finite.
    """

    request: str
    info: str


class ControlAnswer(Message):
    """Return the answer of the controller to a request, as JSON."""

    answer: str


class ShareParams(Message):
    """Ask for shared parameters; with the bytes of the worker's own parameters, filled up, as the payload.

    `layout`: type and shape of each array. `is_first`: the shared parameters begin as this worker's.
    """

    layout: Json
    is_first: bool


class ParamsShared(Message):
    """Join the memory at `place`; with the bytes with which the shared parameters begin as the payload."""

    place: list[int]


class ParamsRefused(Message):
    """Report that no parameters can be shared. `is_reported`: another worker reports the reason."""

    reason: str
    is_reported: bool


class Leave(Message):
    """Report that this worker makes no more requests."""


class Dismissed(Message):
    """Allow a worker to leave MPI, as every worker has left or died."""
