"""Whole searches on spaces of every kind, whose suggestions a test compares with those recorded from an earlier commit.

    python -m tests.helpers.suggested > tests/golden/suggestions.json

records them again, after a change that is meant to change suggestions.
"""

import hashlib
import json
import math
import platform

import numpy as np
import scipy
from numpy._core import _multiarray_umath
from threadpoolctl import threadpool_info, threadpool_limits

from nnlo_opt.app.analysis.effects import effects_of
from nnlo_opt.core.search.base import History
from nnlo_opt.core.search.scalarisation import ScalarisedSearch, VectorHistory
from nnlo_opt.engine.search.registry import make_search
from nnlo_opt.space import Categorical, Constant, Integer, Ordinal, Real, Space, When

CONTINUOUS = [
    Real(-5.0, 10.0, name="x"),
    Real(1e-5, 1.0, "log-uniform", name="rate"),
    Real(0.0, 3.0, likely=0.5, name="y"),
    Real(1e-3, 1e3, "log-uniform", likely=2.0, name="gamma"),
]
MIXED = [
    Categorical(["a", "b", None, True, 2, 2.5, [1, 2]], name="kind"),
    *CONTINUOUS,
    Integer(1, 9, name="depth"),
    Integer(8, 5000, "log-uniform", name="width"),
    Integer(0, 1000, step=10, likely=30, name="wait"),
    Real(0.1, 2.0, step=0.1, name="tenth"),
    Real(0.01, 10.0, "log-uniform", step=0.01, name="hundredth"),
    Ordinal([16, 32, 64, 128], likely=32, name="batch"),
    Categorical(["x", "y"], name="way"),
    Constant([3, 3], "kernel"),
]
BRANCHES = [
    Integer(1, 4, condition=When("model", "network"), name="layers"),
    Categorical(["trees", "network", "kernel"], name="model"),
    Real(1e-4, 1.0, "log-uniform", name="penalty"),
    Integer(1, 30, name="leaves", condition=When("model", "trees", "kernel")),
    Categorical(["relu", "elu"], name="second", condition=When("layers", 2, 3, 4)),
    Real(0.0, 0.9, name="third", condition=When("layers", 3, 4)),
    Ordinal([1, 10, 100], name="degree", condition=When("model", "kernel")),
]
GRID = [Integer(1, 12, name="n"), Categorical(["p", "q", "r"], name="c"), Real(0.0, 1.0, step=0.1, name="t")]
LARGE_GRID = [*GRID, Integer(1, 64, "log-uniform", name="m"), Ordinal([1, 3, 9], name="o")]


def _feasible(point):
    return point.get("n", 1) * point.get("t", 0.5) < 6.0 and point.get("x", 0.0) < 7.0


def _value(point):
    """A smooth loss of whatever the point has."""
    total = 0.0
    for i, (name, value) in enumerate(sorted(point.items())):
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            scaled = math.log1p(abs(value)) if abs(value) > 1.0 else value
            total += (scaled - 0.3 - 0.1 * i) ** 2 * (1.0 + 0.2 * i)
        else:
            total += 0.1 * (len(name) + len(repr(value))) % 7
    return total


def _searched(parameters, name="bayesian", n_trials=45, *, feasible=None, fails=False, n_pending=3, rungs=False):
    space = Space(parameters, feasible)
    algorithm, history = make_search(name, space, 5, {}), History(space)
    history.max_epochs = 9 if rungs else 0
    for trial in range(n_trials):
        point = algorithm.suggest(history.settled())
        if point is None:
            break
        history.record(trial, point, "pending")
        if (ended := trial - n_pending) >= 0:
            done = history.points[ended]
            value = _value(done)
            if fails and ended % 4 == 1:
                history.record(ended, done, "failed", value if ended % 8 == 1 else None)
            elif rungs and (ended % 3 or value > 4.0):
                curve = [(epoch, value + 1.0 / epoch) for epoch in (1, 3)[: 1 + ended % 2]]
                progress = {"waits": bool(ended % 2), "n_rungs": 0, "n_epochs": 3, "train_s": 3.0, "start_s": 0.5}
                history.record(ended, done, "pruned", curve[-1][1], curve=curve, progress=progress)
            else:
                history.record(ended, done, "complete", value, std=0.01 * (1 + ended % 3))
    return list(history.points)


def _two_objectives():
    space = Space(BRANCHES)
    search = ScalarisedSearch(lambda: make_search("bayesian", space, 2, {}), 2, 2)
    history = VectorHistory(space, 2)
    for trial in range(25):
        point = search.suggest(history)
        history.record(trial, point, "pending")
        if trial % 5 != 4:
            losses = [_value(point), float(point["penalty"])]
            history.record(trial, point, "complete", losses[0], losses=losses)
    return list(history.points)


def _effects():
    rng = np.random.default_rng(3)
    space = Space(BRANCHES)
    points = [space.sample(rng) for _ in range(40)]
    found = effects_of(space, points, [_value(point) for point in points])
    return [(one.name, one.importance, one.values, one.dependence) for one in found.effects]


CASES = {
    "continuous": lambda: _searched(CONTINUOUS),
    "mixed": lambda: _searched(MIXED),
    "mixed, failing": lambda: _searched(MIXED, fails=True),
    "conditional": lambda: _searched(BRANCHES),
    "conditional, failing": lambda: _searched(BRANCHES, fails=True),
    "grid": lambda: _searched(GRID),
    "grid with a constraint": lambda: _searched(GRID, feasible=_feasible),
    "large grid": lambda: _searched(LARGE_GRID),
    "large grid with a constraint": lambda: _searched(LARGE_GRID, feasible=_feasible),
    "mixed with a constraint": lambda: _searched(MIXED, feasible=_feasible, n_trials=35),
    "pruned": lambda: _searched(MIXED, rungs=True),
    "pruned, conditional": lambda: _searched(BRANCHES, rungs=True),
    "two objectives": _two_objectives,
    "genetic": lambda: _searched(MIXED, "genetic", fails=True),
    "bayesian-skopt": lambda: _searched(BRANCHES, "bayesian-skopt", n_trials=14),
    "effects": _effects,
}


def machine():
    """What the last bits of a search depend on."""
    found = [one for one in threadpool_info() if one["internal_api"] == "openblas"]
    blas = sorted({f"openblas {one['version']} {one['architecture']}" for one in found})
    # NumPy's loops for `exp` and its like differ by the processor's instructions, whatever BLAS makes of them.
    simd = [name for name, has in _multiarray_umath.__cpu_features__.items() if has and name.startswith("X86_V")]
    return [platform.python_version(), platform.libc_ver()[1], np.__version__, scipy.__version__, *blas, *sorted(simd)]


def digest(case):
    """SHA-256 of all points of a case, and the last one for people."""
    with threadpool_limits(1):
        points = json.loads(json.dumps(CASES[case]()))
    return [hashlib.sha256(json.dumps(points).encode()).hexdigest(), points[-1]]


if __name__ == "__main__":
    print(json.dumps({"machine": machine(), "suggestions": {case: digest(case) for case in CASES}}, indent=1))
