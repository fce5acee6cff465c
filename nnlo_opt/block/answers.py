"""What a rank of a block answers: failures, and results until they are recorded."""

import logging
import socket
import traceback
from pathlib import Path

from nnlo_opt.comm import messages as msg
from nnlo_opt.errors import NnloError
from nnlo_opt.trials import unrecorded
from nnlo_opt.trials.trial import FoldResult, UnrecordedFold

logger = logging.getLogger(__name__)


def reason_of(error: BaseException) -> str:
    """An exception in one sentence: our own as they are, others with their type."""
    text = " ".join(str(error).split())
    if isinstance(error, NnloError):
        return text
    if isinstance(error, MemoryError):
        return f"out of memory: {text or 'Python could not allocate'}"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def worker_failed(assignment: int | None, error: BaseException, world_rank: int) -> msg.WorkerFailed:
    """What a rank that trains tells of `error`."""
    return msg.WorkerFailed(
        assignment=-1 if assignment is None else assignment,
        reason=reason_of(error),
        traceback="".join(traceback.format_exception(error)),
        world_rank=world_rank,
        host=socket.gethostname(),
    )


class Results:
    """Of one rank that answers the coordinator."""

    def __init__(self) -> None:
        #: by assignment; those that finished and of which FoldRecorded has not come
        self._folds: dict[int, UnrecordedFold] = {}

    def add(self, order: msg.RunFold, finished: msg.FoldFinished) -> None:
        """The fold of `order` has finished, and the coordinator is told."""
        result = FoldResult(
            figure_of_merit=finished.figure_of_merit,
            metrics=finished.metrics,
            n_epochs=finished.n_epochs,
            train_s=finished.train_s,
            objectives=finished.objectives,
        )
        self._folds[order.assignment] = UnrecordedFold(
            assignment=order.assignment,
            trial=order.trial,
            fold=order.fold,
            attempt=order.attempt,
            point=order.point,
            result=result,
            reason=finished.reason,
        )

    def forget(self, assignment: int) -> None:
        """The journal has it."""
        self._folds.pop(assignment, None)

    def keep(self, run: Path) -> None:
        """Write all down in the run directory `run`: the coordinator is dead."""
        for fold in self._folds.values():
            try:
                unrecorded.keep(run, fold)
            except OSError as error:
                logger.warning("assignment %d is finished, and will be trained again: %s", fold.assignment, error)
