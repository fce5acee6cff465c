"""Median stopping rule: end a trial that is worse than most other trials were at the same epoch."""

import statistics

from nnlo_opt.search.curves import Reports
from nnlo_opt.search.pruning import Decision, Verdict

_GO_ON = Decision(Verdict.GO_ON)


class MedianStopping:
    """Median stopping rule of Google Vizier (Golovin et al., 2017, section 3.2.1).

    A trial is pruned after an epoch if its best value so far is worse than the median of the other trials' running
    averages up to that epoch. Only trials that have reached this epoch on the same fold are compared.

    Args:
        min_epochs: epochs before which no trial is pruned.
        min_trials: least number of other trials to compare with.
    """

    pauses = False

    def __init__(self, min_epochs: int = 1, min_trials: int = 4) -> None:
        self._min_epochs = min_epochs
        self._min_trials = min_trials

    def decide(self, trial: int, fold: int, epoch: int, reports: Reports) -> Decision:
        best = reports.curve(trial, fold).best_until(epoch)
        if best is None or epoch < self._min_epochs:
            return _GO_ON
        others = [curve.mean_until(epoch) for n, curve in reports.curves(fold) if n != trial and curve.reached(epoch)]
        means = [mean for mean in others if mean is not None]
        if len(means) < self._min_trials or best <= (median := statistics.median(means)):
            return _GO_ON
        reason = (
            f"best value {reports.shown(best):.6g} up to epoch {epoch} is worse than {reports.shown(median):.6g}, the "
            f"median of {len(means)} running averages"
        )
        return Decision(Verdict.PRUNE, reason=reason)

    def pause_epochs(self, trial: int, reports: Reports) -> tuple[int, ...]:
        return ()

    def promotion(self, reports: Reports) -> int | None:
        return None

    def last_resort(self, reports: Reports) -> int | None:
        return None

    def why_left(self, trial: int, reports: Reports) -> str:
        raise ValueError("The median rule leaves no trial waiting.")
