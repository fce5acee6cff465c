"""Reporter of a trial whose training has a loop of its own."""

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

#: file of a save with the figures of its epoch
_FIGURES = "figures.json"
#: names of figures that are arguments of `report`
_ARGUMENTS = ("epoch", "value")


class TrialReporter:
    """Base of the callbacks: each saves and reports every epoch, and knows where its trial goes on.

    Args:
        trial: the trial that the objective has got.
        monitor: name of the figure by which trials are compared; all are reported.
        random: generators of the training that the framework does not know, such as that of a data set; their state is
            saved, too.
    """

    #: argument with which a training begins after the save, for the refusal
    _begins_by = ""

    def __init__(self, trial: "RunningTrial", monitor: str, random: Sequence[Any] = ()) -> None:
        self._trial, self._monitor, self._random = trial, monitor, random
        #: part of block rank 0 of the save from which the training begins; None without one. It holds the whole state:
        #: ranks that train one model agree on it.
        self._saved: Path | None = next(iter(trial.checkpoint.folders), None)
        #: this rank's part of that save, until its random state is set
        self._part: Path | None = trial.checkpoint.folder
        if self._saved is not None and self._part is None:
            logger.warning("this rank has no part of the save of epoch %d: its random numbers are new", self.epoch)
        #: figures of the last epoch by name; empty before the first one
        self.figures: dict[str, float] = {}
        if self._saved is not None:
            self.figures = json.loads((self._saved / _FIGURES).read_text())

    @property
    def epoch(self) -> int:
        """Epoch of the last save; 0 if there is none."""
        return self._trial.checkpoint.epoch

    @property
    def value(self) -> float | None:
        """Value of the monitored figure in the last epoch, also if that was before a crash; None before the first."""
        return self.figures.get(self._monitor)

    def _begin_random(self, loader: Any = None) -> None:
        """Set the random state of the save, right before the first batch; ranks differ in theirs.

        Args:
            loader: what gives the framework its batches, or several of these.
        """
        part, self._part = self._part, None  # a second training goes on with what the first one has left
        load_random_state(part, self._random, loader)

    def _end_epoch(
        self, epoch: int, figures: Mapping[str, Any], write: Callable[[Path], object], loader: Any = None
    ) -> bool:
        """Save and report an epoch; return False if the training is to stop.

        Collective: every rank of the block, if the trial runs on several.

        Args:
            epoch: from 1.
            figures: what the framework has measured; only finite numbers count.
            write: writes the state of the training to an empty folder.
            loader: what gives the framework its batches, or several of these.

        Raises:
            TrialError: the epoch has been saved before, or lacks the monitored figure.
        """
        if epoch <= self.epoch:
            raise TrialError(
                f"a trial that has saved epoch {self.epoch} must go on with the next one; received: epoch {epoch}; "
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
            save_random_state(folder, self._random, loader)  # first, as `write` may draw a number
            write(folder)
            (folder / _FIGURES).write_text(json.dumps(found))

        self._trial.checkpoint.save(epoch, write_all)
        others = {name: number for name, number in found.items() if name not in _ARGUMENTS}
        return self._trial.report(epoch, found[self._monitor], **others)


def _number(figure: Any) -> float | None:
    """Return a figure as a number; None unless it is a single finite one."""
    try:
        number = float(figure)
    except (TypeError, ValueError, RuntimeError):  # tensors of several numbers raise the last two
        return None
    return number if math.isfinite(number) else None
