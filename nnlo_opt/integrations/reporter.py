"""Base class of the callbacks for frameworks with their own training loop."""

import json
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnlo_opt import TrialError
from nnlo_opt.integrations.random_state import load_random_state, save_random_state

if TYPE_CHECKING:
    from nnlo_opt import RunningTrial

logger = logging.getLogger(__name__)

#: file with an epoch's metrics in a save
_FIGURES = "figures.json"
#: names of metrics that are arguments of `report`
_ARGUMENTS = ("epoch", "value")


class TrialReporter:
    """Base class of the callbacks: saves and reports every epoch, and knows where to resume.

    Args:
        trial: argument of the objective.
        monitor: metric to compare trials by; all metrics are reported.
        random: random generators that the framework does not manage, such as that of a data set; their state is saved,
            too.
    """

    #: argument that makes a training resume after the save, for the error message
    _begins_by = ""

    def __init__(self, trial: "RunningTrial", monitor: str, random: Sequence[Any] = ()) -> None:
        self._trial, self._monitor, self._random = trial, monitor, random
        #: save to resume from, written by block rank 0; None without one. It has the whole state: ranks that train one
        #: model agree on it.
        self._saved: Path | None = next(iter(trial.checkpoint.folders), None)
        #: this rank's part of that save; None once its random state is restored
        self._part: Path | None = trial.checkpoint.folder
        if self._saved is not None and self._part is None:
            logger.warning("the save of epoch %d has no part for this rank: its random numbers are new", self.epoch)
        #: name -> metric of the last epoch; empty before the first
        self.figures: dict[str, float] = {}
        if self._saved is not None:
            self.figures = json.loads((self._saved / _FIGURES).read_text())

    @property
    def epoch(self) -> int:
        """Epoch of the last save; 0 if there is none."""
        return self._trial.checkpoint.epoch

    @property
    def value(self) -> float | None:
        """Monitored metric of the last epoch, even if that was before a crash; None before the first."""
        return self.figures.get(self._monitor)

    def _begin_random(self, loader: Any = None) -> None:
        """Restore this rank's random state, right before the first batch.

        Args:
            loader: data loader of the framework, or several.
        """
        part, self._part = self._part, None  # a second training continues from the first
        load_random_state(part, self._random, loader)

    def _end_epoch(
        self, epoch: int, figures: Mapping[str, Any], write: Callable[[Path], object], loader: Any = None
    ) -> bool:
        """Save and report an epoch; return False if the training should stop.

        Collective: every rank of the block must call it, if the trial runs on several.

        Args:
            epoch: from 1.
            figures: metrics of the framework; only finite numbers are used.
            write: writes the state of the training to an empty folder.
            loader: data loader of the framework, or several.

            Raises: TrialError: the epoch was saved before, or lacks the monitored metric.
        """
        if epoch <= self.epoch:
            raise TrialError(
                f"a trial that has saved epoch {self.epoch} must continue with the next one; received: epoch {epoch}; "
                f"{self._begins_by}"
            )
        found = {name: number for name, figure in figures.items() if (number := _number(figure)) is not None}
        if self._monitor not in found:
            raise TrialError(
                f"every epoch must measure the monitored figure, as a finite number; received: `{self._monitor}`, "
                f"while epoch {epoch} has {', '.join(found) or 'no figures'}; name one of these, or validate the model "
                "after every epoch"
            )
        self.figures = found

        def write_all(folder: Path) -> None:
            save_random_state(folder, self._random, loader)  # first, because `write` may draw numbers
            write(folder)
            (folder / _FIGURES).write_text(json.dumps(found))

        self._trial.checkpoint.save(epoch, write_all)
        others = {name: number for name, number in found.items() if name not in _ARGUMENTS}
        return self._trial.report(epoch, found[self._monitor], **others)


def _number(figure: Any) -> float | None:
    """Convert a metric to a float; None unless it is a single finite number."""
    try:
        number = float(figure)
    except (TypeError, ValueError, RuntimeError):  # tensors of several numbers raise the last two
        return None
    return number if math.isfinite(number) else None
