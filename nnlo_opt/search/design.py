"""The first points of a search: spread over the space before anything is known of it."""

import numpy as np

#: Latin hypercubes drawn; the best spread of them is taken
_N_TRIES = 50


def latin_hypercube(n_points: int, n_parameters: int, seed: int) -> np.ndarray:
    """(n_points, n_parameters) float64 in 0..1: in every column one quantile from each of `n_points` equal ranges.

    The best of several random ones by the smallest distance between two points (maximin; Morris and Mitchell, 1995,
    J. Statist. Plann. Inference 43, 381).
    """
    rng = np.random.default_rng((seed, n_points))
    return max((_hypercube(rng, n_points, n_parameters) for _ in range(_N_TRIES)), key=_smallest_distance)


def _hypercube(rng: np.random.Generator, n_points: int, n_parameters: int) -> np.ndarray:
    ranges = np.stack([rng.permutation(n_points) for _ in range(n_parameters)], axis=1)
    return (ranges + rng.random((n_points, n_parameters))) / n_points


def _smallest_distance(units: np.ndarray) -> float:
    """Squared distance of the two closest points; 0 for a single one."""
    squares = ((units[:, None] - units[None]) ** 2).sum(axis=-1)
    return float(squares[np.triu_indices(len(units), 1)].min(initial=float(units.shape[1])))
