"""Random search, and the way every algorithm draws a point that is not yet in the history."""

import math

import numpy as np

from nnlo_opt.search.base import History
from nnlo_opt.space.space import Point, Space

#: draws by the priors before a finite space is walked instead; enough unless hardly anything is left
_N_DRAWS = 100


class RandomSearch:
    """Points drawn by the priors, none twice."""

    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._seed = seed

    def suggest(self, history: History) -> Point | None:
        return unseen_point(self._space, history, suggestion_rng(self._seed, history))


def suggestion_rng(seed: int, history: History) -> np.random.Generator:
    """The randomness of the next suggestion: a function of the seed and of how many were made, of nothing else."""
    return np.random.default_rng((seed, history.n_suggested))


def unseen_point(space: Space, history: History, rng: np.random.Generator) -> Point | None:
    """A random point that is not in the history; None when there is none left."""
    n_points = space.n_points
    if n_points is not None and history.n_distinct >= n_points:
        return None
    for _ in range(_N_DRAWS):
        point = space.sample(rng)
        if not history.contains(point):
            return point
    if n_points is None:  # a range of a handful of floats, all of them tried
        return None
    return _walk_to_unseen(space, n_points, history, rng)


def _walk_to_unseen(space: Space, n_points: int, history: History, rng: np.random.Generator) -> Point:
    # A stride without a common divisor visits every point once, so that one more step than there are seen points is
    # enough; and a large one leaves no trail of neighbours.
    start, stride = (int(rng.random() * n_points) for _ in range(2))
    while math.gcd(stride, n_points) != 1:
        stride += 1
    walk = (space.point_at((start + step * stride) % n_points) for step in range(history.n_distinct + 1))
    return next(point for point in walk if not history.contains(point))
