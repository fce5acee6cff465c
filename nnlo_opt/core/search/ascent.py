"""Ascents of a smooth function from several points within the unit cube, in step with each other.

Each is a projected BFGS: coordinates at a bound are held while the gradient points outwards, and a step is shortened
until it gains enough (Bertsekas, 1982, SIAM J. Control Optim. 20, 221; Nocedal and Wright, 2006, equation 6.17). All
ascents ask for the function at the same time, so that one call for all of their points takes little longer than one
for a single point. The inverse of the curvature is kept whole: at so few coordinates most of the time goes into calls
of NumPy, of which a limited memory needs ten times as many.
"""

from collections.abc import Callable

import numpy as np

#: part of the gain that the gradient promises which a step has to bring, and most times that it is shortened
_ENOUGH, _N_SHORTER = 1e-4, 10
#: an ascent ends when no coordinate promises more than this, or when a step gains less than this part of the value
_FLAT, _NO_GAIN = 1e-5, 2e-9

#: numbers of ascents (k,), their points (k, d) -> values (k,) and gradients (k, d)
Function = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]


class Ascents:
    """Ascents from `starts` (n, d), each within the cube.

    Args:
        function: to maximise; differentiable.
        starts: (n, d) float64 in 0..1.
        is_free: True for the coordinates that an ascent may change, (n, d) bool.
    """

    def __init__(self, function: Function, starts: np.ndarray, is_free: np.ndarray) -> None:
        n, d = starts.shape
        self._function, self._is_free = function, is_free
        #: points, (n, d), and the function and its gradient there; signs are those of a descent
        self.points = starts.copy()
        self._losses, self._gradients = self._evaluated(np.arange(n), starts)
        #: estimates of the inverse curvature, (n, d, d), and True for those that have seen a step
        self._inverses, self._is_estimated = np.zeros((n, d, d)), np.zeros(n, dtype=bool)
        self._inverses[:, np.arange(d), np.arange(d)] = 1.0
        #: numbers of the ascents that go on
        self._going = np.arange(n)

    @property
    def values(self) -> np.ndarray:
        """Values of the function at `points`, (n,)."""
        return -self._losses

    def run(self, n_steps: int) -> None:
        """Make at most `n_steps` steps with each ascent."""
        for _ in range(n_steps):
            self._going = self._going[np.abs(self._pull(self._going)).max(axis=1, initial=0.0) > _FLAT]
            if not len(self._going):
                return
            self._step(self._going)

    def _evaluated(self, rows: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, gradients = self._function(rows, points)
        return -values, np.where(self._is_free[rows], -gradients, 0.0)

    def _pull(self, rows: np.ndarray) -> np.ndarray:
        """Return how far a step along the gradient would get within the cube, (len(rows), d)."""
        return np.clip(self.points[rows] - self._gradients[rows], 0.0, 1.0) - self.points[rows]

    def _directions(self, rows: np.ndarray) -> np.ndarray:
        """Return the directions of the next step, (len(rows), d)."""
        gradients = self._gradients[rows]
        pulled = np.where(self._pull(rows) == 0.0, 0.0, gradients)
        direction = np.matmul(self._inverses[rows], pulled[..., None])[..., 0]
        # Nothing is known of the curvature before the first step, which is no longer than the cube is wide.
        direction /= np.where(self._is_estimated[rows], 1.0, np.maximum(np.linalg.norm(pulled, axis=1), 1.0))[:, None]
        direction[pulled == 0.0] = 0.0
        is_downhill = (direction * gradients).sum(axis=1) > 0.0
        return -np.where(is_downhill[:, None], direction, pulled)

    def _step(self, rows: np.ndarray) -> None:
        """Make one step with each of the ascents `rows`; those that gain nothing end."""
        directions, lengths, gone_on = self._directions(rows), np.ones(len(rows)), []
        for _ in range(_N_SHORTER):
            tried = np.clip(self.points[rows] + lengths[:, None] * directions, 0.0, 1.0)
            losses, gradients = self._evaluated(rows, tried)
            promised = (self._gradients[rows] * (tried - self.points[rows])).sum(axis=1)
            gained = losses - self._losses[rows]
            is_enough = gained <= _ENOUGH * np.minimum(promised, 0.0)
            is_over = is_enough & (-gained <= _NO_GAIN * np.maximum(1.0, np.abs(losses)))
            gone_on.append(rows[is_enough & ~is_over])
            self._accept(rows[is_enough], tried[is_enough], losses[is_enough], gradients[is_enough])
            # The minimum of the parabola through what is known, within a tenth and a half of the step.
            rows, directions, lengths = rows[~is_enough], directions[~is_enough], lengths[~is_enough]
            if not len(rows):
                break
            promised, missed = promised[~is_enough], (gained - promised)[~is_enough]
            lengths = lengths * np.clip(-0.5 * promised / np.maximum(missed, 1e-300), 0.1, 0.5)
        self._going = np.sort(np.concatenate(gone_on))

    def _accept(self, rows: np.ndarray, points: np.ndarray, losses: np.ndarray, gradients: np.ndarray) -> None:
        steps, changes = points - self.points[rows], gradients - self._gradients[rows]
        curvatures = (steps * changes).sum(axis=1)
        # Where the function bends the other way, a pair would tell of no minimum.
        some = np.flatnonzero(curvatures > 1e-10 * (changes**2).sum(axis=1))
        self._update(rows[some], steps[some], changes[some], curvatures[some])
        self.points[rows], self._losses[rows], self._gradients[rows] = points, losses, gradients

    def _update(self, rows: np.ndarray, steps: np.ndarray, changes: np.ndarray, curvatures: np.ndarray) -> None:
        first = ~self._is_estimated[rows]
        self._inverses[rows[first]] *= (curvatures / (changes**2).sum(axis=1))[first, None, None]
        self._is_estimated[rows] = True
        turned = np.matmul(self._inverses[rows], changes[..., None])[..., 0]
        steps = steps / curvatures[:, None]
        weights = curvatures + (changes * turned).sum(axis=1)
        half = steps[:, :, None] * (0.5 * weights[:, None] * steps - turned)[:, None, :]
        self._inverses[rows] += half + half.swapaxes(1, 2)
