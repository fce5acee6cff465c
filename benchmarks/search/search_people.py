"""Tasks like those that people have: mixed, conditional, noisy, failing, with guesses, with two losses.

Made-up trainings whose best loss is 0. Each kind is there twice, with other parameters, categories, noise and numbers:
once in `PEOPLE`, and once in `HELD`, for notes only: nothing may be chosen by the second.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from search_scores import REFERENCE, Task

from nnlo_opt.space import Categorical, Integer, Parameter, Point, Real, Space, When


class _Surface:
    """Loss of a made-up training.

    A bowl in what is numeric, turned and with ripples, with a few parameters that matter more than the others. Every
    category has its own height, two categories together have another one, and where the bowl is depends on a category,
    as the best learning rate does on the optimizer. All heights are drawn by `seed`, and the lowest is 0.

    Args:
        matter: names of parameters that matter; None for all.
        ripple: height of the waves, in bowls as wide as the space.
    """

    def __init__(self, space: Space, seed: int, *, matter: Sequence[str] | None = None, ripple: float = 0.1) -> None:
        rng = np.random.default_rng(seed)
        self._space = space
        self._ripple = ripple
        names = [parameter.name for parameter in space.parameters if matter is None or parameter.name in matter]
        choices = [name for name in names if isinstance(space[name], Categorical)]
        self._numeric = [name for name in names if name not in choices]
        self._heights = {name: self._drawn(rng, len(space[name].categories)) for name in choices}
        #: unconditional categories, as the others may be absent
        common = [name for name in choices if space[name].condition is None]
        self._pair = tuple(common[:2]) if len(common) > 1 else ()
        self._together = rng.uniform(0.0, 0.6, [len(self._heights[name]) for name in self._pair])
        if self._pair:
            best = tuple(int(self._heights[name].argmin()) for name in self._pair)
            self._together -= self._together.min()
            self._together[best] = 0.0
        #: numeric parameter -> category by which its best position moves
        self._moved_by = {
            name: common[int(rng.integers(len(common)))] if common and rng.random() < 0.5 else None
            for name in self._numeric
        }
        #: numeric parameter -> its best position for each category that moves it
        self.centres = {
            name: [self._on_grid(name, rng.uniform(0.1, 0.9)) for _ in range(len(self._heights[by]) if by else 1)]
            for name, by in self._moved_by.items()
        }
        weights = np.exp(rng.normal(size=len(self._numeric)))
        self._weights = 3.0 * weights / max(weights.sum(), 1e-9)
        n = len(self._numeric)
        self._turn = np.eye(n) + np.triu(rng.normal(scale=0.5 / math.sqrt(max(n, 1)), size=(n, n)), 1)

    @staticmethod
    def _drawn(rng: np.random.Generator, n: int) -> np.ndarray:
        heights = rng.uniform(0.05, 0.8, n) * rng.uniform(0.3, 1.0)
        heights[int(rng.integers(n))] = 0.0
        return heights

    def position(self, name: str, value: Any) -> float:
        """Position on the scale of a numeric parameter, 0 to 1, which a likely value does not bend."""
        parameter = self._space[name]
        low, high = float(parameter.low), float(parameter.high)
        if parameter.prior == "log-uniform":
            return math.log(value / low) / math.log(high / low)
        return (value - low) / (high - low)

    def _on_grid(self, name: str, position: float) -> float:
        """The nearest position that a value has."""
        parameter = self._space[name]
        if not isinstance(parameter, Integer):
            return position
        values = range(parameter.low, parameter.high + 1)
        return min((self.position(name, value) for value in values), key=lambda other: abs(other - position))

    def __call__(self, point: Point) -> float:
        at = {name: self._space[name].index(point[name]) for name in self._heights if name in point}
        loss = sum(float(self._heights[name][index]) for name, index in at.items())
        if self._pair:
            loss += float(self._together[tuple(at[name] for name in self._pair)])
        away = np.zeros(len(self._numeric))
        for row, name in enumerate(self._numeric):
            if name in point:
                by = self._moved_by[name]
                away[row] = self.position(name, point[name]) - self.centres[name][at[by] if by else 0]
        bowl = self._weights @ (self._turn @ away) ** 2
        waves = self._ripple * (self._weights @ (1.0 - np.cos(6.0 * np.pi * away))) / 6.0
        loss += float(bowl + waves)
        return loss / (1.0 + 0.3 * loss)


# ---------------------------------------------------------------- spaces


def _category(name: str, n: int) -> Parameter:
    return Categorical([f"{name}-{index}" for index in range(n)], name=name)


def _many(n_real: int, n_log: int, integers: Sequence[tuple[int, int]], categories: Sequence[int]) -> Space:
    """Parameters without a meaning: real ones, real ones on a logarithmic scale, integers, categories."""
    reals = [Real(0.0, 1.0, name=f"x{index}") for index in range(n_real)]
    rates = [Real(1e-5, 1.0, "log-uniform", name=f"rate{index}") for index in range(n_log)]
    counts = [Integer(low, high, name=f"n{index}") for index, (low, high) in enumerate(integers)]
    return Space([*reals, *rates, *counts, *(_category(f"c{index}", n) for index, n in enumerate(categories))])


def _classifiers() -> Space:
    """Five kinds of models with parameters of their own, behind a choice of preprocessing."""
    svm, forest, boosting, network, neighbours = (
        When("model", kind) for kind in ("svm", "forest", "boosting", "network", "neighbours")
    )
    return Space(
        [
            Categorical(["svm", "forest", "boosting", "network", "neighbours"], name="model"),
            Categorical(["none", "standard", "ranks", "pca", "minmax"], name="scaling"),
            Real(0.3, 1.0, name="features"),
            Real(1e-3, 1e3, "log-uniform", name="svm_c", condition=svm),
            Real(1e-5, 10.0, "log-uniform", name="svm_gamma", condition=svm),
            Integer(10, 500, "log-uniform", name="forest_trees", condition=forest),
            Integer(1, 30, name="forest_leaf", condition=forest),
            Real(1e-3, 1.0, "log-uniform", name="boosting_rate", condition=boosting),
            Integer(2, 12, name="boosting_depth", condition=boosting),
            Real(0.3, 1.0, name="boosting_rows", condition=boosting),
            Real(1e-5, 1e-1, "log-uniform", name="network_rate", condition=network),
            Integer(1, 5, name="network_layers", condition=network),
            Integer(16, 512, "log-uniform", name="network_units", condition=network),
            Real(0.0, 0.6, name="network_dropout", condition=network),
            Integer(1, 50, "log-uniform", name="neighbours_k", condition=neighbours),
        ]
    )


def _optimizers() -> Space:
    """A network whose optimizers and schedules have parameters of their own, some two conditions deep."""
    sgd, schedule = When("optimizer", "sgd"), When("schedule", "step", "cosine", "exponential")
    return Space(
        [
            Categorical(["adam", "sgd", "rmsprop", "lion", "adagrad", "lamb"], name="optimizer"),
            Categorical(["constant", "step", "cosine", "exponential"], name="schedule"),
            Real(1e-6, 1.0, "log-uniform", name="rate"),
            Real(1e-8, 1e-1, "log-uniform", name="decay"),
            Integer(1, 8, name="layers"),
            Categorical(["none", "classical", "nesterov"], name="momentum_kind", condition=sgd),
            Real(0.5, 0.999, name="momentum", condition=When("momentum_kind", "classical", "nesterov")),
            Real(0.8, 0.9999, name="beta", condition=When("optimizer", "adam", "lion", "lamb")),
            Real(0.8, 0.9999, name="rho", condition=When("optimizer", "rmsprop")),
            Real(0.0, 0.3, name="warm_up", condition=schedule),
            Real(1e-4, 1.0, "log-uniform", name="last_rate", condition=schedule),
            Integer(2, 10, name="steps", condition=When("schedule", "step")),
        ]
    )


def _trained() -> Space:
    return Space(
        [
            Real(1e-5, 1.0, "log-uniform", name="rate"),
            Real(0.0, 0.8, name="dropout"),
            Integer(8, 1024, "log-uniform", name="units"),
            Integer(1, 8, name="layers"),
            Categorical(["relu", "tanh", "elu", "gelu", "sigmoid", "swish"], name="activation"),
            Categorical(["adam", "sgd", "rmsprop", "adagrad", "lion"], name="optimizer"),
        ]
    )


def _trained_otherwise() -> Space:
    return Space(
        [
            Real(1e-6, 0.1, "log-uniform", name="rate"),
            Real(1e-7, 1e-1, "log-uniform", name="decay"),
            Integer(16, 512, name="batch"),
            Integer(2, 12, name="heads"),
            Real(0.0, 0.5, name="dropout"),
            Categorical(["pre", "post", "none"], name="norm"),
            Categorical(["adam", "adamw", "lamb", "sgd", "adafactor", "lion", "sophia"], name="optimizer"),
        ]
    )


# ---------------------------------------------------------------- kinds of tasks


def _plain(space: Space, seed: int, **surface: Any) -> Task:
    return Task(space, _Surface(space, seed, **surface))


def _noisy(space: Space, seed: int, noise: float, n_folds: int = 1) -> Task:
    return Task(space, _Surface(space, seed), noise=noise, n_folds=n_folds)


def _failing(space: Space, seed: int, names: Sequence[str], margin: float) -> Task:
    """Trials fail where the positions of these parameters have too large a sum: memory, or a rate that diverges.

    The best point is at least `margin` away from that.
    """
    surface = _Surface(space, seed)
    limit = sum(max(surface.centres[name]) for name in names) + margin
    return Task(space, surface, fails=lambda p: sum(surface.position(name, p[name]) for name in names) > limit)


def _guessed(n: int, seed: int, away: Sequence[float]) -> Task:
    """`n` parameters, each with a likely value, whose positions are so far from the best ones."""

    def parameter(index: int, likely: float | None = None) -> Parameter:
        if index % 2:
            return Real(0.0, 1.0, name=f"x{index}", likely=likely)
        return Real(1e-5, 1.0, "log-uniform", name=f"rate{index}", likely=likely)

    surface = _Surface(Space(map(parameter, range(n))), seed)
    guessed = []
    for index in range(n):
        plain = parameter(index)
        (best,) = surface.centres[plain.name]
        towards_middle = away[index % len(away)] * (1 if best < 0.5 else -1)
        guessed.append(parameter(index, plain.from_unit(min(max(best + towards_middle, 0.0), 1.0))))
    return Task(Space(guessed), surface)


def _two_losses(space: Space, seed: int, trade: str, power: float) -> Task:
    """Error beside cost, which `trade` weighs against each other; all that the others get wrong makes both larger.

    The best front is second = 1 - first ** power for first from 0 to 1 (Zitzler, Deb and Thiele, 2000).
    """
    surface = _Surface(space, seed, matter=[name for name in space.names if name != trade])

    def losses(point: Point) -> tuple[float, float]:
        first, wrong = surface.position(trade, point[trade]), 1.0 + 2.0 * surface(point)
        return first, wrong * (1.0 - (first / wrong) ** power)

    edge = REFERENCE - 1.0
    best = edge + 1.0 / (power + 1.0) + edge * REFERENCE
    return Task(space, lambda _: math.nan, losses=losses, best_hypervolume=best)


#: tasks to develop with
PEOPLE: dict[str, Callable[[], Task]] = {
    "people-mixed-12": lambda: _plain(_many(2, 3, [(1, 8), (1, 20), (2, 64)], [5, 6, 8, 10]), 1),
    "people-mixed-24": lambda: _plain(_many(7, 3, [(0, 10)] * 6, [2, 3, 4, 5, 6, 7, 8, 10]), 2),
    "people-branches": lambda: _plain(_classifiers(), 3),
    "people-integers": lambda: _plain(_many(0, 0, [(1, 4), (1, 6), (0, 10), (2, 9), (1, 12)], []), 4, ripple=0.2),
    "people-3-of-20": lambda: _plain(_many(8, 4, [(0, 9)] * 4, [4, 5, 6, 7]), 5, matter=["x2", "rate1", "c1"]),
    "people-noisy": lambda: _noisy(_many(5, 0, [], []), 6, 0.1),
    "people-noisy-network": lambda: _noisy(_trained(), 7, 0.1),
    "people-folds": lambda: _noisy(_many(3, 1, [(1, 10)], [5]), 8, 0.2, n_folds=5),
    "people-failing": lambda: _failing(_trained(), 9, ["rate", "units", "layers"], 0.1),
    "people-guess-right": lambda: _guessed(8, 10, [0.05, 0.0, -0.08, 0.03]),
    "people-guess-wrong": lambda: _guessed(8, 11, [0.35, 0.2, 0.3, 0.4]),
    "people-two-losses": lambda: _two_losses(_many(3, 1, [(1, 10)], [5, 3]), 12, "x0", 0.5),
}
#: the same kinds once more, for notes only
HELD: dict[str, Callable[[], Task]] = {
    "held-mixed-14": lambda: _plain(_many(3, 2, [(1, 100), (0, 5), (3, 30), (1, 4)], [6, 7, 5, 9, 3]), 101),
    "held-mixed-30": lambda: _plain(_many(12, 4, [(1, 16)] * 5, [3, 5, 5, 6, 8, 10, 2, 4, 7]), 102, ripple=0.05),
    "held-branches": lambda: _plain(_optimizers(), 103),
    "held-integers": lambda: _plain(_many(0, 0, [(0, 7), (1, 3), (1, 20), (5, 9)], [5]), 104, ripple=0.3),
    "held-3-of-22": lambda: _plain(_many(10, 2, [(1, 32)] * 5, [8, 5, 5, 3, 6]), 105, matter=["x7", "n3", "c0"]),
    "held-noisy": lambda: _noisy(_many(4, 2, [(1, 9)], []), 106, 0.07),
    "held-noisy-network": lambda: _noisy(_trained_otherwise(), 107, 0.12),
    "held-folds": lambda: _noisy(_trained_otherwise(), 108, 0.25, n_folds=3),
    "held-failing": lambda: _failing(_many(3, 2, [(1, 12), (8, 256)], [5, 7]), 109, ["rate0", "n1", "x2"], 0.05),
    "held-guess-right": lambda: _guessed(11, 110, [-0.06, 0.02, 0.1]),
    "held-guess-wrong": lambda: _guessed(6, 111, [0.25, 0.45, 0.3, 0.15]),
    "held-two-losses": lambda: _two_losses(_many(4, 2, [(1, 30)], [6]), 112, "rate1", 2.0),
}
