import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.core.search.base import History
from nnlo_opt.core.search.random import RandomSearch
from nnlo_opt.space import Categorical, Integer, Real, Space
from nnlo_opt.testing.search_conformance import SearchConformance
from tests.helpers.effort import examples
from tests.helpers.searches import suggest_all


class TestRandomSearch(SearchConformance):
    leaves_failed_regions = False
    n_trials = 60
    make = RandomSearch


sizes = st.lists(st.integers(2, 5), min_size=1, max_size=3)


@given(sizes=sizes, seed=st.integers(0, 2**63), log=st.booleans())
@settings(deadline=None, max_examples=examples(50))
def test_any_small_space_is_used_up_exactly(sizes, seed, log):
    space = Space(
        Integer(1, size, "log-uniform", name=f"n{i}") if log else Categorical(range(size), name=f"c{i}")
        for i, size in enumerate(sizes)
    )
    algorithm = RandomSearch(space, seed)
    history = suggest_all(algorithm, History(space), math.prod(sizes))
    assert history.n_distinct == math.prod(sizes)
    assert algorithm.suggest(history) is None


def test_last_point_of_a_large_space_is_found():
    space = Space([Integer(1, 5000, "log-uniform", name="n")])
    history = History(space)
    for trial, n in enumerate(n for n in range(1, 5001) if n != 4321):
        history.record(trial, {"n": n}, "pending")
    assert RandomSearch(space, 0).suggest(history) == {"n": 4321}


def test_range_of_two_floats_ends():
    space = Space([Real(1.0, math.nextafter(1.0, 2.0), name="x")])
    algorithm = RandomSearch(space, 0)
    history = suggest_all(algorithm, History(space), 2, "failed")
    assert algorithm.suggest(history) is None


def test_priors_are_followed():
    space = Space([Real(1e-4, 1.0, "log-uniform", name="x"), Integer(1, 4, name="n")])
    history = suggest_all(RandomSearch(space, 1), History(space), 2000)
    x = np.array([point["x"] for point in history.points])
    n = np.array([point["n"] for point in history.points])
    assert abs(np.mean(x < 1e-2) - 0.5) < 0.05
    assert all(abs(np.mean(n == value) - 0.25) < 0.05 for value in (1, 2, 3, 4))
