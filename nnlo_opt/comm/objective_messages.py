"""Messages between the ranks of a block that runs a user's objective.

root -> another rank    CallObjective, ObjectiveProceed; FoldFailed if the call cannot succeed any more
another rank -> root    ObjectiveArrived, ObjectiveReturned; FoldFailed if the objective raised
"""

from nnlo_opt.comm.messages import AssignmentMessage, Json


class CallObjective(AssignmentMessage):
    """Call the objective at this point, together with all ranks of the block."""

    point: dict[str, Json]


class ObjectiveArrived(AssignmentMessage):
    """Report that this rank has arrived at the collective call `at` of the objective, and waits for all ranks."""

    at: str


class ObjectiveProceed(AssignmentMessage):
    """Make the collective call at which all ranks have arrived. `go_on` is the answer of `report`."""

    go_on: bool


class ObjectiveReturned(AssignmentMessage):
    """Report that the objective has returned on this rank."""
