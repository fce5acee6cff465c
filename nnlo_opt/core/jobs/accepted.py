"""Messages that a job accepts from the files in `jobs/`, which are data from anyone who can write there.

An order is one of six messages about folds, its point is in the search space of this job, and its numbers are in range.
No order contains a path: folders are named by the numbers.
"""

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.base.records import MAX_INTEGER
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.codec import from_json
from nnlo_opt.core.comm.run_messages import SharedFilesChanged
from nnlo_opt.core.jobs.lines import Ordered, Reported
from nnlo_opt.core.space.space import Space
from nnlo_opt.core.trials.joined_job import LEAST_RANKS

#: messages that a coordinator may send to the masters of a job
ORDERS = (msg.RunFold, msg.GoOn, msg.PauseFold, msg.PreemptFold, msg.StopFold, msg.FoldRecorded)
#: messages that the ranks of a job may send to the coordinator
_REPORTS = (
    msg.FoldStarted, msg.EpochReported, msg.FoldFinished, msg.FoldStopped, msg.FoldPaused, msg.FoldFailed,
    msg.TeamReformed, SharedFilesChanged,
)  # fmt: skip


def checked_order(order: Ordered, term: int, *, space: Space, n_fold: int, n_ranks: int) -> msg.AssignmentMessage:
    """Return the message of an order.

    Args:
        order: line of an orders file.
        term: term that the job follows, whose file the line is from.
        space: search space of this job; its constraint is not evaluated.
        n_fold: number of folds of a trial.
        n_ranks: number of ranks of this job; a single process plays two.

    Raises:
        ProtocolError: it is not an order that this job may obey.
    """
    message = from_json(order.message)
    if not isinstance(message, ORDERS):
        raise ProtocolError(f"{type(message).__name__} is not an order.")
    if order.rank >= max(n_ranks, LEAST_RANKS):
        raise ProtocolError(f"An order is for rank {order.rank} of a job of {n_ranks}.")
    _check("assignment", message.assignment)
    if isinstance(message, msg.RunFold):
        _check("trial", message.trial)
        _check("fold", message.fold, 0, n_fold - 1)
        _check("attempt", message.attempt, 1)
        _check("first", message.first, -1, 1)
        _check("term", message.term, term, term)
        for epoch in message.pause_epochs:
            _check("epoch", min(epoch, MAX_INTEGER), 1)  # a pruner without a last epoch names some that none reaches
        for earlier, number in message.before:
            _check("earlier term", earlier, 0, term)
            _check("earlier assignment", number)
        if not space.contains(message.point):
            raise ProtocolError(f"The point of trial {message.trial} is not in the search space: {message.point}.")
    return message


def checked_report(report: Reported) -> msg.Message:
    """Return the message of a line of a job's log; ProtocolError if it is not one for the coordinator."""
    message = from_json(report.message)
    if not isinstance(message, _REPORTS):
        raise ProtocolError(f"{type(message).__name__} is not a report.")
    return message


def _check(name: str, number: int, least: int = 0, most: int = MAX_INTEGER) -> None:
    if not least <= number <= most:
        raise ProtocolError(f"The {name} of an order must be from {least} to {most}. Received: {number}.")
