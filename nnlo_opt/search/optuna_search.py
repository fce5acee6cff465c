"""Searches with Optuna's samplers; the one importer of Optuna, which comes with the extra [optuna].

A sampler keeps state between calls and draws from one random generator, so each suggestion has a sampler and a study of
its own, made of the history and of the seed of that suggestion.
"""

import importlib.util
import warnings
from collections.abc import Callable

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.search.base import History, TrialState
from nnlo_opt.search.random import may_be_tried, suggestion_rng, unseen_point
from nnlo_opt.space.parameters import Categorical, Integer, Parameter, Value
from nnlo_opt.space.space import Point, Space

#: points asked for in a row because those before were in the history
_N_TRIES = 5
#: a uniform Integer of at most so many values is told as one; others, and Reals, by their quantile
_MAX_COUNTED = 1000

_STATES = {
    TrialState.PENDING: optuna.trial.TrialState.RUNNING,
    TrialState.COMPLETE: optuna.trial.TrialState.COMPLETE,
}


class OptunaSearch:
    """A sampler of Optuna. Failed trials are told as the worst value seen, which Optuna itself would pass over."""

    def __init__(self, space: Space, seed: int, make_sampler: Callable[[int], optuna.samplers.BaseSampler]) -> None:
        """`make_sampler` takes the seed of a suggestion."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = space
        self._seed = seed
        self._make_sampler = make_sampler
        self._distributions = {parameter.name: _distribution(parameter) for parameter in space.parameters}

    def suggest(self, history: History) -> Point | None:
        n_points = self._space.n_points
        rng = suggestion_rng(self._seed, history)
        if n_points is not None and history.n_distinct >= n_points:
            return None
        with warnings.catch_warnings():  # of features that Optuna calls experimental
            warnings.simplefilter("ignore")
            study = optuna.create_study(sampler=self._make_sampler(int(rng.integers(2**31))))
            study.add_trials(self._trials(history))
            for _ in range(_N_TRIES):
                asked = study.ask(self._distributions).params
                units = [_unit(parameter, asked[parameter.name]) for parameter in self._space.parameters]
                point = self._space.from_unit(units)
                if may_be_tried(point, history):
                    return point
        return unseen_point(self._space, history, rng)

    def _trials(self, history: History) -> list[optuna.trial.FrozenTrial]:
        values = history.values / max(float(np.nanmax(np.abs(history.values), initial=0.0)), 1e-300)
        worst = float(np.nanmax(values, initial=-1.0))
        return [
            optuna.trial.create_trial(
                state=_STATES.get(state, optuna.trial.TrialState.COMPLETE),
                params={p.name: _told(p, point) for p in self._space.parameters},
                distributions=self._distributions,
                value=None if state is TrialState.PENDING else worst if state is TrialState.FAILED else float(value),
            )
            for point, state, value in zip(history.points, history.states, values, strict=True)
        ]


def make_tpe(space: Space, seed: int) -> OptunaSearch:
    """Tree-structured Parzen estimator, all parameters together; pending trials count as bad."""
    sampler = optuna.samplers.TPESampler
    return OptunaSearch(space, seed, lambda number: sampler(seed=number, multivariate=True, constant_liar=True))


def make_gp(space: Space, seed: int) -> OptunaSearch:
    """Optuna's Gaussian process; ConfigurationError where torch is missing, on which it computes."""
    if importlib.util.find_spec("torch") is None:
        raise ConfigurationError(
            "`--hyper-opt gp` computes with torch. Received: an installation without it; install the extra [torch], or "
            "take `--hyper-opt bayesian`, a Gaussian process that needs no torch."
        )
    return OptunaSearch(space, seed, lambda number: optuna.samplers.GPSampler(seed=number))


def _distribution(parameter: Parameter) -> BaseDistribution:
    if isinstance(parameter, Categorical):
        return CategoricalDistribution(range(parameter.n_values))
    if _is_counted(parameter):
        return IntDistribution(0, (parameter.n_values or 1) - 1)
    return FloatDistribution(0.0, 1.0)


def _is_counted(parameter: Parameter) -> bool:
    return isinstance(parameter, Integer) and parameter.prior == "uniform" and parameter.n_values <= _MAX_COUNTED


def _told(parameter: Parameter, point: Point) -> int | float:
    """What stands for a value in a study; the middle for a parameter that the point does not have."""
    value: Value = point[parameter.name] if parameter.name in point else parameter.from_unit(0.5)
    if isinstance(parameter, Categorical):
        return parameter.key(value)
    unit = parameter.to_unit(value)
    return int(unit * (parameter.n_values or 1)) if _is_counted(parameter) else unit


def _unit(parameter: Parameter, asked: int | float) -> float:
    """The quantile of what a study answered."""
    if isinstance(parameter, Categorical) or _is_counted(parameter):
        return (asked + 0.5) / (parameter.n_values or 1)
    return float(asked)
