"""Searches with Optuna's samplers; the only module that imports Optuna, which comes with the extra [optuna].

A sampler keeps state between calls and draws from one random generator. Therefore each suggestion uses a new sampler
and study, created from the history and the suggestion's seed.
"""

import importlib.util
import warnings
from collections.abc import Callable

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.search.base import History
from nnlo_opt.core.search.random import SeededSearch, first_new
from nnlo_opt.core.search.targets import without_penalties
from nnlo_opt.core.space.parameters import Categorical, Integer, Parameter
from nnlo_opt.core.space.space import Point, Space
from nnlo_opt.core.trials.trial import TrialState

#: most consecutive requests because earlier points were in the history
_N_TRIES = 5
#: a uniform Integer of at most this many values is passed as an integer; any other number is passed as its quantile
_MAX_COUNTED = 1000

_PENDING, _ENDED = optuna.trial.TrialState.RUNNING, optuna.trial.TrialState.COMPLETE


class OptunaSearch(SeededSearch):
    """Search with an Optuna sampler; failed trials count as the worst value, because Optuna would skip them.

    Args:
        space: search space of all points.
        seed: at least 0.
        make_sampler: returns a sampler for the seed of a suggestion.
    """

    def __init__(self, space: Space, seed: int, make_sampler: Callable[[int], optuna.samplers.BaseSampler]) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        super().__init__(space, seed)
        self._make_sampler = make_sampler
        self._distributions = {parameter.name: _distribution(parameter) for parameter in space.parameters}

    def suggest(self, history: History) -> Point | None:
        n_points = self._space.n_points
        rng = self._rng(history)
        if n_points is not None and history.n_distinct >= n_points:
            return None
        with warnings.catch_warnings():  # Optuna's warnings about experimental features
            warnings.simplefilter("ignore")
            study = optuna.create_study(sampler=self._make_sampler(int(rng.integers(2**31))))
            study.add_trials(self._trials(history))
            return first_new((self._asked(study) for _ in range(_N_TRIES)), history, rng)

    def _asked(self, study: optuna.Study) -> Point:
        asked = study.ask(self._distributions).params
        return self._space.from_unit(_unit(parameter, asked[parameter.name]) for parameter in self._space.parameters)

    def _trials(self, history: History) -> list[optuna.trial.FrozenTrial]:
        values, known = history.values.copy(), np.flatnonzero(np.isfinite(history.values))
        is_complete = np.isin(known, history.rows(TrialState.COMPLETE))
        values[known] = without_penalties(values[known], known, is_complete)
        values /= max(float(np.nanmax(np.abs(values), initial=0.0)), 1e-300)
        worst = float(np.nanmax(values, initial=-1.0))
        return [
            optuna.trial.create_trial(
                state=_PENDING if state is TrialState.PENDING else _ENDED,
                params={p.name: _encoded(p, point) for p in self._space.parameters},
                distributions=self._distributions,
                value=None if state is TrialState.PENDING else worst if state is TrialState.FAILED else float(value),
            )
            for point, state, value in zip(history.points, history.states, values, strict=True)
        ]


def make_tpe(space: Space, seed: int) -> OptunaSearch:
    """Return a tree-structured Parzen estimator of all parameters together; pending trials count as bad."""
    sampler = optuna.samplers.TPESampler
    return OptunaSearch(space, seed, lambda number: sampler(seed=number, multivariate=True, constant_liar=True))


def make_gp(space: Space, seed: int) -> OptunaSearch:
    """Return a search with Optuna's Gaussian process, which needs torch.

    Likely values do not reach the process, which a wrong one would trap (`core.search.encoding`).

    Raises:
        ConfigurationError: if torch is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise ConfigurationError(
            f"`{spelled('hyper_opt', 'gp')}` needs torch. It is not installed: `pip install 'nnlo_opt[torch]'`, or "
            f"use `{spelled('hyper_opt', 'bayesian')}`, a Gaussian process that needs no torch."
        )
    return OptunaSearch(space.without_likely, seed, lambda number: optuna.samplers.GPSampler(seed=number))


def _distribution(parameter: Parameter) -> BaseDistribution:
    if isinstance(parameter, Categorical):
        return CategoricalDistribution(range(parameter.n_values))
    if _is_counted(parameter):
        return IntDistribution(0, (parameter.n_values or 1) - 1)
    return FloatDistribution(0.0, 1.0)


def _is_counted(parameter: Parameter) -> bool:
    return isinstance(parameter, Integer) and parameter.prior == "uniform" and parameter.n_values <= _MAX_COUNTED


def _encoded(parameter: Parameter, point: Point) -> int | float:
    """Return a point's value as in a study; the middle value for a parameter that the point does not have."""
    value = point[parameter.name] if parameter.name in point else parameter.from_unit(0.5)
    if isinstance(parameter, Categorical):
        return parameter.key(value)
    unit = parameter.to_unit(value)
    return int(unit * (parameter.n_values or 1)) if _is_counted(parameter) else unit


def _unit(parameter: Parameter, asked: int | float) -> float:
    """Return the quantile of a value that a study suggested."""
    if isinstance(parameter, Categorical) or _is_counted(parameter):
        return (asked + 0.5) / (parameter.n_values or 1)
    return float(asked)
