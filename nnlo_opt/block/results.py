"""Results that a block has sent and nobody has recorded yet: where the coordinator dies, they are kept in files."""

import logging
from pathlib import Path

from nnlo_opt.comm import messages as msg
from nnlo_opt.trials import unrecorded
from nnlo_opt.trials.trial import FoldResult, UnrecordedFold

logger = logging.getLogger(__name__)


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
