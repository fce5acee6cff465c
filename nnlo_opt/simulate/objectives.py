"""Objectives of virtual blocks: test functions whose optimum is known, or a user's own function of a point."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnlo_opt.space.parameters import Real
from nnlo_opt.space.space import Point, Space


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """Function of a point that returns the figure of merit, or the values of all epochs; the last value counts."""

    name: str
    function: Callable[[Point], float | Sequence[float]]
    space: Space
    #: the best possible figure; None if it is unknown
    optimum: float | None = None


_HARTMANN_ALPHA = np.array([1.0, 1.2, 3.0, 3.2])
_HARTMANN_A = np.array(
    [
        [10, 3, 17, 3.5, 1.7, 8],
        [0.05, 10, 17, 0.1, 8, 14],
        [3, 3.5, 1.7, 10, 17, 8],
        [17, 8, 0.05, 10, 0.1, 14],
    ]
)
_HARTMANN_P = 1e-4 * np.array(
    [
        [1312, 1696, 5569, 124, 8283, 5886],
        [2329, 4135, 8307, 3736, 1004, 9991],
        [2348, 1451, 3522, 2883, 3047, 6650],
        [4047, 8828, 8732, 5743, 1091, 381],
    ]
)


def hartmann6(point: Point) -> float:
    """Return Hartmann's function of `x1` … `x6` in 0..1 (Dixon and Szegö, 1978, Towards Global Optimisation 2, 1)."""
    x = np.array([_number(point[f"x{i}"]) for i in range(1, 7)])
    return -float(_HARTMANN_ALPHA @ np.exp(-(_HARTMANN_A * (x - _HARTMANN_P) ** 2).sum(axis=1)))


def branin(point: Point) -> float:
    """Return Branin's function of `x1` in -5..10 and `x2` in 0..15 (the same volume, p. 12); three global minima."""
    x1, x2 = _number(point["x1"]), _number(point["x2"])
    valley = x2 - 5.1 / (4 * math.pi**2) * x1**2 + 5 / math.pi * x1 - 6
    return valley**2 + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x1) + 10


def _number(value: Any) -> float:
    return float(value)


#: test functions by name
BUILTIN: dict[str, Objective] = {
    objective.name: objective
    for objective in (
        Objective(
            name="hartmann6",
            function=hartmann6,
            space=Space(Real(0.0, 1.0, name=f"x{i}") for i in range(1, 7)),
            optimum=-3.32236801141551,
        ),
        Objective(
            name="branin",
            function=branin,
            space=Space([Real(-5.0, 10.0, name="x1"), Real(0.0, 15.0, name="x2")]),
            optimum=0.39788735772973816,
        ),
    )
}
