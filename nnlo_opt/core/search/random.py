"""Random search, and functions that draw unseen points for every algorithm."""

import math
from collections.abc import Iterable
from itertools import islice

import numpy as np

from nnlo_opt.core.search.base import History
from nnlo_opt.core.space.space import MOST_DRAWS, Point, Space

#: draws from the priors before a finite space is enumerated instead; enough unless hardly any point is left
_N_DRAWS = 100
#: points drawn for each feasible point wanted, if fewer points are acceptable
_DRAWS_A_POINT = 10


class SeededSearch:
    """Base class of searches that draw random numbers.

    Args:
        space: search space of all points.
        seed: at least 0.
    """

    def __init__(self, space: Space, seed: int) -> None:
        self._space = space
        self._seed = seed

    def _rng(self, history: History) -> np.random.Generator:
        """Return the generator for the next suggestion, a function of the seed and the number of suggestions only."""
        return np.random.default_rng((self._seed, history.n_suggested))


class RandomSearch(SeededSearch):
    """Draws feasible points from the priors, each at most once."""

    def suggest(self, history: History) -> Point | None:
        return unseen_point(self._space, history, self._rng(history))


def may_be_tried(point: Point, history: History) -> bool:
    """Return True if `point` is feasible and new."""
    return not history.contains(point) and history.space.is_feasible(point)


def first_new(points: Iterable[Point | None], history: History, rng: np.random.Generator) -> Point | None:
    """Return the first of `points` that is new and feasible, else the result of `unseen_point`.

    >>> space = Space([Integer(1, 3, name="n")])
    >>> first_new([{"n": 2}, {"n": 1}], History(space), np.random.default_rng(0))
    {'n': 2}

    Raises:
        ConfigurationError: if the constraint refuses every point that was drawn.
    """
    for point in points:
        if point is not None and may_be_tried(point, history):
            return point
    return unseen_point(history.space, history, rng)


def unseen_point(space: Space, history: History, rng: np.random.Generator) -> Point | None:
    """Return a random feasible point that is not in the history; None if none is left.

    >>> space = Space([Real(0, 1, name="x")])
    >>> unseen_point(space, History(space), np.random.default_rng(0))
    {'x': 0.6369616873214543}

    Raises:
        ConfigurationError: if the constraint refuses every point that was drawn.
    """
    n_points = space.n_points
    if n_points is not None and history.n_distinct >= n_points:
        return None
    walks = n_points is not None if space.constraint is None else space.can_be_walked
    n_accepted = 0
    for _ in range(_N_DRAWS if walks or space.constraint is None else MOST_DRAWS):
        point = space.draw(rng)
        if space.is_feasible(point):
            n_accepted += 1
            if not history.contains(point):
                return point
    if n_points is not None and walks:
        return _walk_to_unseen(space, n_points, history, rng)
    if n_accepted == 0:
        raise space.refusal(f"all of {MOST_DRAWS:,} points drawn were refused")
    return None  # all feasible points were tried


def feasible_draws(space: Space, n_points: int, rng: np.random.Generator) -> np.ndarray:
    """Return quantiles of up to `n_points` feasible points drawn from the priors, (n, n_parameters) float64.

    There are fewer if the constraint refuses most points.
    """
    if space.constraint is None:
        return rng.random((n_points, len(space.parameters)))
    drawn = (rng.random(len(space.parameters)).tolist() for _ in range(_DRAWS_A_POINT * n_points))
    accepted = list(islice((units for units in drawn if space.is_feasible(space.from_unit(units))), n_points))
    return np.array(accepted).reshape(len(accepted), len(space.parameters))


def _walk_to_unseen(space: Space, n_points: int, history: History, rng: np.random.Generator) -> Point | None:
    # A stride coprime to the number of points visits every point once. Without a constraint one more step than seen
    # points is enough. A large stride avoids runs of neighbours.
    start, stride = (int(rng.random() * n_points) for _ in range(2))
    while math.gcd(stride, n_points) != 1:
        stride += 1
    n_steps = history.n_distinct + 1 if space.constraint is None else n_points
    walk = (space.point_at((start + step * stride) % n_points) for step in range(n_steps))
    return next((point for point in walk if not history.contains(point) and space.is_feasible(point)), None)
