"""Initial points of a search, spread over the space before any value is known."""

import numpy as np

from nnlo_opt.core.space.parameters import Categorical, Parameter
from nnlo_opt.core.space.space import Space

#: an ordered parameter with at most this many values is searched by enumeration
FEW_VALUES = 16
#: points of a design for each parameter of many values; least and most points if there are enough trials
_N_EACH, _N_LEAST, _N_MOST = 3, 10, 20
#: Latin hypercubes drawn; the one with the best spread is used
_N_TRIES = 50


def has_many_values(parameter: Parameter) -> bool:
    """Return True if a parameter is searched as if it were continuous."""
    n_values = parameter.n_values
    return not isinstance(parameter, Categorical) and (n_values is None or n_values > FEW_VALUES)


def design_size(space: Space | None, n_trials: int | None = None, *, has_bounds: bool = False) -> int:
    """Return the number of initial points of a Bayesian search; it grows with the number of parameters of many values.

    At most half of `n_trials` (but at least 3) are initial points, so that a short search does more than explore. With
    outcome constraints half as many suffice: most points of a design violate them, and show by how much.
    """
    n_many = sum(map(has_many_values, space.parameters)) if space is not None else 0
    n_points = min(_N_MOST, max(_N_LEAST, _N_EACH * n_many))
    n_points = n_points // 2 if has_bounds else n_points
    return n_points if n_trials is None else min(n_points, max(3, n_trials // 2))


def latin_hypercube(n_points: int, n_parameters: int, seed: int, number: int = 0) -> np.ndarray:
    """Return a Latin hypercube: each column has one quantile from each of `n_points` equal ranges.

    Of several random ones, it has the largest minimum distance between two points (maximin; Morris and Mitchell, 1995,
    J. Statist. Plann. Inference 43, 381).

    Returns:
        (n_points, n_parameters) float64 in 0..1.
    """
    rng = np.random.default_rng((seed, n_points, number) if number else (seed, n_points))
    return max((hypercube(rng, n_points, n_parameters) for _ in range(_N_TRIES)), key=_smallest_distance)


def hypercube(rng: np.random.Generator, n_points: int, n_parameters: int) -> np.ndarray:
    """Return a random Latin hypercube, (n_points, n_parameters) float64 in 0..1."""
    ranges = np.stack([rng.permutation(n_points) for _ in range(n_parameters)], axis=1)
    return (ranges + rng.random((n_points, n_parameters))) / n_points


def _smallest_distance(units: np.ndarray) -> float:
    """Return the squared distance of the two closest points, or a constant for a single point."""
    squares = ((units[:, None] - units[None]) ** 2).sum(axis=-1)
    return float(squares[np.triu_indices(len(units), 1)].min(initial=float(units.shape[1])))
