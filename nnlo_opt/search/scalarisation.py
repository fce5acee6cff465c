"""Several objectives for search algorithms that know one: a new weighting of the objectives for every suggestion.

ParEGO (Knowles, 2006, IEEE Trans. Evol. Comput. 10, 50): random weights, uniform on the simplex, and the augmented
Tchebycheff function of the normalised losses (its equation 2). Whether the front is convex or not, its points are the
best for some weights each (but those that gain in one objective less than RHO of what they lose in others), so
suggestions for changing weights spread along it. It departs from the paper in
that weights are not drawn from a grid, and that losses are normalised by the Pareto set instead of by all trials: one
diverged trial then does not flatten the differences between the good ones.
"""

from collections.abc import Callable, Sequence

import numpy as np

from nnlo_opt.search.base import History, SearchAlgorithm, TrialState
from nnlo_opt.space.space import Point, Space
from nnlo_opt.trials.pareto import ParetoSet

#: what the sum of the objectives counts beside the largest of them (the paper's rho): none is for nothing
RHO = 0.05
#: normalised losses above are as bad as this: sums of them stay finite
_WORST = 1e9
#: tells the weights' stream from the algorithm's own
_STREAM = 1


class VectorHistory(History):
    """A history in which complete trials have several losses, beside the value that algorithms look at."""

    def __init__(self, space: Space, n_objectives: int) -> None:
        super().__init__(space)
        self._n_objectives = n_objectives
        #: trial number -> losses; complete trials only
        self._losses: dict[int, tuple[float, ...]] = {}
        #: the complete trials that no other beats
        self._pareto = ParetoSet()

    def record(
        self,
        trial: int,
        point: Point,
        state: str,
        value: float | None = None,
        losses: Sequence[float] | None = None,
        *,
        std: float | None = None,
    ) -> None:
        """As `History.record`; `losses` are finite, one an objective, and belong to a complete trial only."""
        n_expected = self._n_objectives if TrialState(state) is TrialState.COMPLETE else 0
        if len(losses or ()) != n_expected:
            raise ValueError(f"A {state} trial must have {n_expected} losses. Received: {losses}, {value}.")
        known = self._losses.get(trial)
        super().record(trial, point, state, value, std=std)
        if losses is not None and known is None:
            self._losses[trial] = tuple(losses)
            self._pareto.add(trial, losses)

    def settled(self) -> History:
        """This history, of which `scalarised` makes settled ones."""
        return self

    def scalarised(self, weights: np.ndarray) -> History:
        """The same trials, each complete one with the augmented Tchebycheff function of its normalised losses.

        A pruned trial, of which one objective at most is known, is as bad as the worst of them. `weights`:
        (n_objectives,) float64, at least 0, of sum 1.
        """
        values = np.full(max(1, self.n_suggested), np.nan)
        pruned = [row for row, state in enumerate(self.states) if state is TrialState.PRUNED]
        values[pruned] = 0.0
        if self._losses:
            rows = np.array([self._rows[trial] for trial in self._losses])
            losses = np.array(list(self._losses.values()))
            front = np.array([self._losses[trial] for trial in self._pareto.trials])
            values[rows] = tchebycheff(normalised(losses, front), weights)
            values[pruned] = values[rows].max()
        return self.with_values(values).settled()


class ScalarisedSearch:
    """Gives a search algorithm one objective at a time; as pure a function of the history as the algorithm itself."""

    def __init__(self, make: Callable[[], SearchAlgorithm], seed: int, n_objectives: int) -> None:
        """`make()`: a fresh algorithm, for every suggestion, as what one remembers would be of other weights."""
        self._make = make
        self._seed = seed
        self._n_objectives = n_objectives

    def suggest(self, history: History) -> Point | None:
        """The next point for a VectorHistory."""
        assert isinstance(history, VectorHistory)
        rng = np.random.default_rng((self._seed, history.n_suggested, _STREAM))
        weights = rng.dirichlet(np.ones(self._n_objectives))
        return self._make().suggest(history.scalarised(weights))


def normalised(losses: np.ndarray, front: np.ndarray) -> np.ndarray:
    """(n, k) losses, 0 at the best of each objective, 1 at the worst that the Pareto set (m, k) has of it.

    Where the set has one value of an objective only, 1 is at the median of all trials, else at the worst of them.
    """
    losses, front = losses / 2, front / 2  # a difference of finite numbers may overflow, of their halves not
    ideal = front.min(axis=0)
    spans = np.array([front.max(axis=0), np.median(losses, axis=0), losses.max(axis=0)]) - ideal
    first = spans[np.argmax(spans > 0, axis=0), np.arange(losses.shape[1])]
    with np.errstate(over="ignore"):
        above: np.ndarray = (losses - ideal) / np.where(first > 0, first, 1.0)
    return np.minimum(above, _WORST)


def tchebycheff(normal: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """(n,) values: the largest weighted loss, plus RHO times their sum, of (n, k) normalised losses."""
    weighted = normal * weights
    values: np.ndarray = weighted.max(axis=1) + RHO * weighted.sum(axis=1)
    return values
