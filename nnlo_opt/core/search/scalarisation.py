"""Multi-objective search with single-objective algorithms: new random weights for every suggestion.

ParEGO (Knowles, 2006, IEEE Trans. Evol. Comput. 10, 50) draws random weights, uniform on the simplex, for the augmented
Tchebycheff function of the normalised losses (equation 2 of the paper). Every Pareto point, on a convex front or not,
is optimal for some weights, unless its gain in one objective is less than RHO times its loss in the others; so changing
the weights spreads the suggestions along the front. Two departures from the paper: weights are not drawn from a grid,
and losses are normalised by the Pareto set, not by all trials, so that one diverged trial does not flatten the
differences between good ones.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from nnlo_opt.core.search.base import History, SearchAlgorithm
from nnlo_opt.core.search.targets import without_penalties
from nnlo_opt.core.space.space import Point, Space
from nnlo_opt.core.trials.objectives import ParetoSet
from nnlo_opt.core.trials.trial import TrialState

#: weight of the sum of the objectives beside the largest one (rho in the paper), so that every objective counts
RHO = 0.05
#: normalised losses are clipped to this, so that sums stay finite
_WORST = 1e9
#: separates the random stream of the weights from that of the algorithm
_STREAM = 1


class VectorHistory(History):
    """History in which complete and infeasible trials also have one loss per objective.

    Args:
        space: search space that contains all points.
        n_objectives: number of losses of a complete trial.
    """

    def __init__(self, space: Space, n_objectives: int) -> None:
        super().__init__(space)
        self._n_objectives = n_objectives
        #: trial number -> losses; complete and infeasible trials only
        self._losses: dict[int, tuple[float, ...]] = {}
        #: non-dominated complete trials
        self._pareto = ParetoSet()

    def record(
        self,
        trial: int,
        point: Point,
        state: str,
        value: float | None = None,
        losses: Sequence[float] | None = None,
        **more: Any,
    ) -> None:
        """Record a trial like `History.record`; a measured trial also has one finite loss per objective."""
        n_expected = self._n_objectives if value is not None and state != TrialState.PRUNED else 0
        if len(losses or ()) != n_expected:
            raise ValueError(f"A {state} trial must have {n_expected} losses. Received: {losses}, {value}.")
        known = self._losses.get(trial)
        super().record(trial, point, state, value, **more)
        if losses is not None and known is None:
            self._losses[trial] = tuple(losses)
            if state == TrialState.COMPLETE:
                self._pareto.add(trial, losses)

    def settled(self) -> History:
        """Return this history; `scalarised` returns settled ones."""
        return self

    def scalarised(self, weights: np.ndarray) -> History:
        """Return the same trials with the augmented Tchebycheff function of their normalised losses as values.

        At most one objective of a pruned trial is known, so it counts as the worst complete trial. While all trials are
        infeasible, losses are normalised by those with known outcomes.

        Args:
            weights: (n_objectives,) float64, at least 0, with sum 1.
        """
        values = np.full(max(1, self.n_suggested), np.nan)
        pruned = self.rows(TrialState.PRUNED)
        values[pruned] = 0.0
        if self._pareto.trials or (self._losses and self._outcomes):
            trials = sorted(self._losses)
            rows = np.array([self._rows[trial] for trial in trials])
            losses = np.array([self._losses[trial] for trial in trials])
            is_complete = np.array([self._states[row] is TrialState.COMPLETE for row in rows])
            # A trial with a penalty in one objective may be Pareto-optimal by another one, and the penalty would set
            # the scale.
            losses = np.column_stack([without_penalties(column, rows, is_complete) for column in losses.T])
            front = losses[np.isin(trials, self._pareto.trials)] if self._pareto.trials else losses
            values[rows] = tchebycheff(normalised(losses, front), weights)
            values[pruned] = values[rows].max()
        scalarised = self.with_values(values)
        scalarised.has_fixed_values = False
        return scalarised.settled()


class ScalarisedSearch:
    """Runs a single-objective algorithm with new weights for every suggestion.

    The suggestion is a function of the history only, like the algorithm's.

    Args:
        make: returns a new algorithm; called for every suggestion, because a cached fit belongs to other weights.
        seed: at least 0.
        n_objectives: number of objectives of the history.
    """

    def __init__(self, make: Callable[[], SearchAlgorithm], seed: int, n_objectives: int) -> None:
        self._make = make
        self._seed = seed
        self._n_objectives = n_objectives

    def suggest(self, history: History) -> Point | None:
        """Return the next point for a VectorHistory."""
        assert isinstance(history, VectorHistory)
        rng = np.random.default_rng((self._seed, history.n_suggested, _STREAM))
        return self._make().suggest(history.scalarised(rng.dirichlet(np.ones(self._n_objectives))))


def normalised(losses: np.ndarray, front: np.ndarray) -> np.ndarray:
    """Return losses scaled to 0 at the best value of each objective and 1 at the worst value in the Pareto set.

    If the Pareto set has one value only, 1 is at the median of all trials, or at their worst value.

    Args:
        losses: all complete trials, (n, k).
        front: Pareto set, (m, k).
    """
    losses, front = losses / 2, front / 2  # halves, so that no difference overflows
    ideal = front.min(axis=0)
    spans = np.array([front.max(axis=0), np.median(losses, axis=0), losses.max(axis=0)]) - ideal
    first = spans[np.argmax(spans > 0, axis=0), np.arange(losses.shape[1])]
    with np.errstate(over="ignore"):
        above: np.ndarray = (losses - ideal) / np.where(first > 0, first, 1.0)
    return np.minimum(above, _WORST)


def tchebycheff(normal: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return (n,) values for (n, k) normalised losses: the largest weighted loss plus RHO times the sum of all."""
    weighted = normal * weights
    return weighted.max(axis=1) + RHO * weighted.sum(axis=1)
