"""Maximises a smooth function in the unit cube from several starts in lockstep.

Each ascent is a projected BFGS: coordinates at a bound are fixed while the gradient points outwards, and a step is
shortened until it gains enough (Bertsekas, 1982, SIAM J. Control Optim. 20, 221; Nocedal and Wright, 2006, equation
6.17). All ascents evaluate the function together, because one call for all points takes little longer than a call for
one. The full inverse Hessian is kept: with so few coordinates NumPy's call overhead dominates, and limited-memory BFGS
needs ten times as many calls.
"""

from collections.abc import Callable

import numpy as np

#: Armijo condition: fraction of the gain predicted by the gradient that a step must reach, and most backtracking steps
_ENOUGH, _N_SHORTER = 1e-4, 10
#: an ascent ends when no coordinate of the projected gradient exceeds this, or a step's relative gain is below this
_FLAT, _NO_GAIN = 1e-5, 2e-9

#: (numbers of ascents (k,), their points (k, d)) -> values (k,) and gradients (k, d)
Function = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


class Ascents:
    """Ascents from `starts` (n, d), each within the cube.

    Args:
        function: differentiable function to maximise.
        starts: (n, d) float64 in 0..1.
        is_free: True for the coordinates that an ascent may change, (n, d) bool.
    """

    def __init__(self, function: Function, starts: np.ndarray, is_free: np.ndarray) -> None:
        n, d = starts.shape
        self._function, self._is_free = function, is_free
        #: points, (n, d), with the function and its gradient there; both negated, as for a minimisation
        self.points = starts.copy()
        self._losses, self._gradients = self._evaluated(np.arange(n), starts)
        #: estimates of the inverse Hessian, (n, d, d), and True for those updated at least once
        self._inverses, self._is_estimated = np.zeros((n, d, d)), np.zeros(n, dtype=bool)
        self._inverses[:, np.arange(d), np.arange(d)] = 1.0
        #: numbers of the ascents still running
        self._going = np.arange(n)

    @property
    def values(self) -> np.ndarray:
        """Values of the function at `points`, (n,)."""
        return -self._losses

    def run(self, n_steps: int) -> None:
        """Make at most `n_steps` steps with each ascent."""
        for _ in range(n_steps):
            pulls = self._pull(self._going)
            goes_on = np.abs(pulls).max(axis=1, initial=0.0) > _FLAT
            self._going = self._going[goes_on]
            if not len(self._going):
                return
            self._step(self._going, pulls[goes_on])

    def _evaluated(self, rows: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, gradients = self._function(rows, points)
        return -values, np.where(self._is_free[rows], -gradients, 0.0)

    def _pull(self, rows: np.ndarray) -> np.ndarray:
        """Return the projected gradient: how far a step along the gradient gets within the cube, (len(rows), d)."""
        return np.clip(self.points[rows] - self._gradients[rows], 0.0, 1.0) - self.points[rows]

    def _directions(self, rows: np.ndarray, pulls: np.ndarray) -> np.ndarray:
        """Return the directions of the next step, (len(rows), d), where the projected gradients are `pulls`."""
        gradients = self._gradients[rows]
        pulled = np.where(pulls == 0.0, 0.0, gradients)
        direction = np.matmul(self._inverses[rows], pulled[..., None])[..., 0]
        # Before the first step the curvature is unknown, so that step is at most as long as the cube is wide.
        direction /= np.where(self._is_estimated[rows], 1.0, np.maximum(np.linalg.norm(pulled, axis=1), 1.0))[:, None]
        direction[pulled == 0.0] = 0.0
        is_downhill = (direction * gradients).sum(axis=1) > 0.0
        return -np.where(is_downhill[:, None], direction, pulled)

    def _step(self, rows: np.ndarray, pulls: np.ndarray) -> None:
        """Make one step in each of the ascents `rows`; those that gain nothing end."""
        directions, lengths, gone_on = self._directions(rows, pulls), np.ones(len(rows)), []
        for _ in range(_N_SHORTER):
            tried = np.clip(self.points[rows] + lengths[:, None] * directions, 0.0, 1.0)
            losses, gradients = self._evaluated(rows, tried)
            promised = (self._gradients[rows] * (tried - self.points[rows])).sum(axis=1)
            gained = losses - self._losses[rows]
            is_enough = gained <= _ENOUGH * np.minimum(promised, 0.0)
            is_over = is_enough & (-gained <= _NO_GAIN * np.maximum(1.0, np.abs(losses)))
            if is_enough.all():  # the usual case, in which selecting rows would cost more than the step
                self._accept(rows, tried, losses, gradients)
                gone_on.append(rows[~is_over])
                break
            gone_on.append(rows[is_enough & ~is_over])
            self._accept(rows[is_enough], tried[is_enough], losses[is_enough], gradients[is_enough])
            # Minimum of the interpolating parabola, kept between a tenth and a half of the step.
            rows, directions, lengths = rows[~is_enough], directions[~is_enough], lengths[~is_enough]
            promised, missed = promised[~is_enough], (gained - promised)[~is_enough]
            lengths = lengths * np.clip(-0.5 * promised / np.maximum(missed, 1e-300), 0.1, 0.5)
        self._going = np.sort(np.concatenate(gone_on))

    def _accept(self, rows: np.ndarray, points: np.ndarray, losses: np.ndarray, gradients: np.ndarray) -> None:
        steps, changes = points - self.points[rows], gradients - self._gradients[rows]
        curvatures = (steps * changes).sum(axis=1)
        # A pair with negative curvature would spoil the estimate.
        is_convex = curvatures > 1e-10 * (changes**2).sum(axis=1)
        if is_convex.all():
            self._update(rows, steps, changes, curvatures)
        else:
            self._update(rows[is_convex], steps[is_convex], changes[is_convex], curvatures[is_convex])
        self.points[rows], self._losses[rows], self._gradients[rows] = points, losses, gradients

    def _update(self, rows: np.ndarray, steps: np.ndarray, changes: np.ndarray, curvatures: np.ndarray) -> None:
        first = ~self._is_estimated[rows]
        if first.any():
            self._inverses[rows[first]] *= (curvatures / (changes**2).sum(axis=1))[first, None, None]
            self._is_estimated[rows] = True
        turned = np.matmul(self._inverses[rows], changes[..., None])[..., 0]
        steps = steps / curvatures[:, None]
        weights = curvatures + (changes * turned).sum(axis=1)
        half = steps[:, :, None] * (0.5 * weights[:, None] * steps - turned)[:, None, :]
        self._inverses[rows] += half + half.swapaxes(1, 2)
