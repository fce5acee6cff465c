"""Genetic search: mutated children of the best points so far."""

import numpy as np

from nnlo_opt.core.search.base import History
from nnlo_opt.core.search.design import latin_hypercube
from nnlo_opt.core.search.encoding import Encoding
from nnlo_opt.core.search.random import SeededSearch, first_new, unseen_point
from nnlo_opt.core.space.space import Point, Space
from nnlo_opt.core.trials.trial import TrialState

#: children tried before a point is drawn from the priors instead
_N_TRIES = 50
#: how far a crossed value may lie beyond its parents' values, as a fraction of their distance (BLX-alpha)
_BLEND = 0.3
#: standard deviation of a mutation in quantiles: initial value, factor per generation, minimum
_STEP, _STEP_LEFT, _LEAST_STEP = 0.2, 0.9, 0.005

#: default size of a generation
DEFAULT_POPULATION = 10


class GeneticSearch(SeededSearch):
    """Steady-state genetic algorithm on the quantiles of the priors.

    A generation is `population` completed trials, but no suggestion waits for a generation to end: parents are the best
    `population` of all trials from full generations. Each parent is the better of two random ones. An ordered value of
    a child is drawn around its parents' values (BLX-alpha; Eshelman and Schaffer, 1993, Foundations of Genetic
    Algorithms 2, 187), and an unordered value is taken from either parent. One value mutates on average: an ordered
    value by a normal step that shrinks with the generations, an unordered value by a new draw. A child closer to a
    failed trial than to every complete trial is rejected.

    Args:
        space: search space of all points.
        seed: at least 0.
        population: trials of a generation, at least 2.
    """

    def __init__(self, space: Space, seed: int, population: int = DEFAULT_POPULATION) -> None:
        super().__init__(space, seed)
        self._population = population
        self._encoding = Encoding(space)
        #: quantiles of the first generation
        self._design = latin_hypercube(population, len(space.parameters), seed).tolist()

    def suggest(self, history: History) -> Point | None:
        rng = self._rng(history)
        if history.n_suggested < self._population:
            return first_new([self._space.from_unit(self._design[history.n_suggested])], history, rng)
        complete = history.rows(TrialState.COMPLETE)
        if len(complete) < 2:
            return unseen_point(self._space, history, rng)
        generation = len(complete) // self._population
        parents = self._parents(history, complete[: max(generation * self._population, 2)])
        failed = self._encoding.columns_of(history, history.rows(TrialState.FAILED))
        succeeded = self._encoding.columns_of(history, complete)
        born = (self._child(parents, generation, rng) for _ in range(_N_TRIES))
        children = (self._encoding.space.from_unit(positions.tolist()) for positions in born)
        return first_new((child for child in children if not self._is_barren(child, failed, succeeded)), history, rng)

    def _is_barren(self, child: Point, failed: np.ndarray, succeeded: np.ndarray) -> bool:
        """Return True if a failed trial is closer to the child than every complete one, in encoded columns."""
        column = self._encoding.columns([child])
        return len(failed) > 0 and _least_square(failed - column) < _least_square(succeeded - column)

    def _parents(self, history: History, rows: np.ndarray) -> np.ndarray:
        """Return the positions of the best `population` of `rows`, (n, n_parameters), the best first."""
        ranking = rows[np.argsort(history.values[rows], kind="stable")][: self._population]
        return np.array([self._encoding.space.to_unit(history.points[row]) for row in ranking])

    def _child(self, parents: np.ndarray, generation: int, rng: np.random.Generator) -> np.ndarray:
        one, other = (parents[rng.integers(len(parents), size=2).min()] for _ in range(2))
        low, high = np.minimum(one, other), np.maximum(one, other)
        blended = rng.uniform(low - _BLEND * (high - low), high + _BLEND * (high - low))
        child = np.where(self._encoding.unordered, np.where(rng.random(len(one)) < 0.5, one, other), blended)
        step = max(_STEP * _STEP_LEFT**generation, _LEAST_STEP)
        mutated = np.where(self._encoding.unordered, rng.random(len(one)), child + step * rng.normal(size=len(one)))
        mutates = rng.random(len(one)) < 1.0 / len(one)
        if not mutates.any() and np.array_equal(one, other):
            mutates[rng.integers(len(one))] = True
        return np.clip(np.where(mutates, mutated, child), 0.0, 1.0)


def _least_square(differences: np.ndarray) -> float:
    return float((differences**2).sum(axis=1).min(initial=np.inf))
