"""Messages between the ranks of a block that runs a user's objective.

root -> the others    CallObjective, ObjectiveProceed, ObjectiveFailed
another -> root       ObjectiveArrived, ObjectiveReturned
"""

from nnlo_opt.comm.messages import Json, Message


class CallObjective(Message):
    """Call the objective at this point, together with all ranks of the block."""

    assignment: int
    point: dict[str, Json]


class ObjectiveArrived(Message):
    """This rank waits for the others in a collective call of the objective: `at` says in which."""

    assignment: int
    at: str


class ObjectiveProceed(Message):
    """All ranks have arrived at the same call: make it. `go_on` is the answer of `report`."""

    assignment: int
    go_on: bool


class ObjectiveReturned(Message):
    """This rank is out of the objective; `error` is empty unless it raised."""

    assignment: int
    error: str = ""
    traceback: str = ""
    world_rank: int = -1
    host: str = ""


class ObjectiveFailed(Message):
    """The call cannot succeed any more (a rank raised, or the ranks disagree): give it up."""

    assignment: int
    reason: str
    world_rank: int = -1
