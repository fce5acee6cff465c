"""Workload of virtual blocks: objective, duration and failure of each assignment."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.messages import Message
from nnlo_opt.core.space.parameters import Real
from nnlo_opt.core.space.space import Point, Space
from nnlo_opt.core.trials.figure import finite_number

#: metric reported by an epoch, as for an objective module
METRIC = "value"


# ---------------------------------------------------------------- objectives


class SimulatedObjective(Frozen):
    """Function of a point that returns the figure of merit, or the values of all epochs, of which the last counts."""

    name: str
    function: Callable[[Point], float | Sequence[float]]
    space: Space
    #: the best possible figure; None if it is unknown
    optimum: float | None = None


_HARTMANN_ALPHA = np.array([1.0, 1.2, 3.0, 3.2])
_HARTMANN_A = np.array(
    [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
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
BUILTIN: dict[str, SimulatedObjective] = {
    objective.name: objective
    for objective in (
        SimulatedObjective(
            name="hartmann6",
            function=hartmann6,
            space=Space(Real(0.0, 1.0, name=f"x{i}") for i in range(1, 7)),
            optimum=-3.32236801141551,
        ),
        SimulatedObjective(
            name="branin",
            function=branin,
            space=Space([Real(-5.0, 10.0, name="x1"), Real(0.0, 15.0, name="x2")]),
            optimum=0.39788735772973816,
        ),
    )
}


# ---------------------------------------------------------------- durations


#: returns the seconds of a fold at a point, at least 0; draws random numbers only from the generator
Durations = Callable[[Point, np.random.Generator], float]


def lognormal(median_s: float, sigma: float = 0.0) -> Durations:
    """Return durations exp(N(log `median_s`, `sigma`²)).

    With `sigma` 0 they are constant; with 0.5 two thirds are between 0.6 and 1.65 medians.
    """
    if not (0 < median_s < math.inf and 0 <= sigma < math.inf):
        raise ConfigurationError(
            "A duration must have a median above 0 seconds and a sigma of at least 0. "
            f"Received: {median_s:g} and {sigma:g}."
        )
    return lambda point, rng: median_s * math.exp(sigma * rng.standard_normal()) if sigma else median_s


def measured(values_s: Sequence[float]) -> Durations:
    """Return durations drawn uniformly from measured ones."""
    return lambda point, rng: values_s[int(rng.integers(len(values_s)))]


def computed(function: Callable[[Point], float]) -> Durations:
    """Return durations computed from the point by a user's function."""

    def seconds(point: Point, rng: np.random.Generator) -> float:
        rule = "a duration must be finite seconds, at least 0"
        seconds = finite_number(function(point), rule)
        if seconds < 0:
            raise TrialError(f"{rule}; received: {seconds}")
        return seconds

    return seconds


# ---------------------------------------------------------------- assignments


class Workload(Frozen):
    """Results of assignments, as a function of seed, trial, fold and attempt, but not of time or block.

    So searches with different numbers of blocks have the same durations and failures.
    """

    objective: SimulatedObjective
    durations: Durations
    #: probability that an attempt at a fold fails, at a random time
    failures: float = 0.0
    #: number of reports of a fold whose objective returns a single number, the value of each report
    n_epochs: int = 1
    #: seconds from the order to the start of the training: building the model, loading data
    startup_s: float = 0.0
    seed: int = 0

    def reports(self, order: msg.RunFold, waited_s: float | None, n_done: int = 0) -> Iterator[tuple[float, Message]]:
        """Yield the messages of a master about an assignment, each with the seconds since the previous one.

        Args:
            order: the assignment.
            waited_s: idle seconds of the master before it; None for its first assignment.
            n_done: epochs of the fold in a checkpoint of an earlier assignment.
        """
        number = order.assignment
        rng = np.random.default_rng((self.seed, order.trial, order.fold, order.attempt))
        yield self.startup_s, msg.FoldStarted(assignment=number, epoch=n_done, waited_s=waited_s)
        try:
            train_s = self.train_s(order, rng)
            values = self.values(order)
        except Exception as error:
            yield 0.0, msg.FoldFailed(assignment=number, reason=_reason(error))
            return
        epoch_s, share = train_s / len(values), self.fails_after(order, rng)
        n_epochs = len(values) if share is None else int(share * len(values))
        for epoch in range(n_done + 1, n_epochs + 1):
            value, waits = values[epoch - 1], order.waits_for_decision and epoch < len(values)
            reported = msg.EpochReported(assignment=number, epoch=epoch, metrics={METRIC: value}, waits=waits)
            yield epoch_s, reported.replaced(figure_of_merit=value, checkpointed=waits)
        if share is None:
            yield 0.0, self._finished(number, values, train_s)
        else:
            yield share * train_s - n_epochs * epoch_s, msg.FoldFailed(assignment=number, reason="a simulated fault")

    def fails_after(self, order: msg.RunFold, rng: np.random.Generator) -> float | None:
        """Return the fraction of the training after which the fold fails, 0 to 1; None if it does not fail."""
        if self.failures == 0.0 or rng.random() >= self.failures:
            return None
        return float(rng.random())

    @property
    def n_epochs_most(self) -> int:
        """Largest known number of epochs of a fold; exceptions of a user's function propagate."""
        return len(self.of_epochs(self.objective.space.middle()))

    def train_s(self, order: msg.RunFold, rng: np.random.Generator) -> float:
        """Return the seconds of all epochs of a fold; an exception of a user's function fails it."""
        return self.durations(order.point, rng)

    def values(self, order: msg.RunFold) -> list[float]:
        """Return the value of every epoch of a fold; an exception of a user's function fails it."""
        return self.of_epochs(order.point)

    def of_epochs(self, point: Point) -> list[float]:
        """Return the objective's value of every epoch at a point."""
        result, rule = self.objective.function(point), "the objective must return finite numbers"
        if isinstance(result, list | tuple | np.ndarray) and np.shape(result) not in ((), (0,)):
            return [finite_number(value, rule) for value in result]
        return [finite_number(result, rule)] * self.n_epochs

    def _finished(self, assignment: int, values: list[float], train_s: float) -> msg.FoldFinished:
        return msg.FoldFinished(
            assignment=assignment,
            figure_of_merit=values[-1],
            metrics={METRIC: values[-1]},
            n_epochs=len(values),
            train_s=train_s,
        )


def _reason(error: Exception) -> str:
    """Describe an exception of a user's function in one sentence, with its type unless it is one of ours."""
    return str(error) if isinstance(error, TrialError) else f"{type(error).__name__}: {error}"
