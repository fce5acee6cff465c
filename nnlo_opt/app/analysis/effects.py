"""Effects of parameters on the figure of merit, by functions drawn from a Gaussian process of the complete trials.

The process is fitted as in `core.search.bayesian`, to figures that are compressed by `core.search.targets.warp`. A
figure counts as at most `_MOST_ABOVE` times as far from the best as the median is, so that diverged trials do not
outweigh all else. What the process does not know shows as the spread of functions that are drawn from it. Each function
is a sum of random features, corrected at the trials (Wilson et al., 2020, ICML, "Efficiently sampling functions from
Gaussian process posteriors", eq. 13; features: Rahimi and Recht, 2007, NeurIPS).

Importance is the total index of Sobol: the share of the variance over the search space that is left on average if all
other parameters are known (Homma and Saltelli, 1996, Reliability Engineering and System Safety 52, 1, eq. 7). Points
are drawn by the priors of the parameters, and each parameter then takes its values one after another. Shares of
parameters that act together overlap, so that their sum may be above 1.

Partial dependence is the mean over such points if one parameter is set to a value (Friedman, 2001, Annals of Statistics
29, 1189, section 8.2). A parameter that a point does not have is left out of the means.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nnlo_opt.core.search.bayesian import representative
from nnlo_opt.core.search.design import hypercube
from nnlo_opt.core.search.encoding import Encoding
from nnlo_opt.core.search.gaussian_process import Hyperparameters, Observations, Posterior, fit_hyperparameters
from nnlo_opt.core.search.targets import standardise, unwarp, warp
from nnlo_opt.core.space.parameters import Constant, Parameter
from nnlo_opt.core.space.space import Point, Space
from nnlo_opt.core.space.values import Value

#: fewer complete trials say nothing about a parameter
MIN_TRIALS = 5
#: most trials to which hyperparameters are fitted, and most that the process has seen
_MAX_FITTED, _MAX_SEEN = 128, 256
#: largest distance of a figure from the best one, in units of the median distance
_MOST_ABOVE = 10.0
#: functions drawn, and features of each
_N_DRAWS, _N_FEATURES = 64, 256
#: values of a parameter that has many, and points at which all parameters take these values together at most
_N_VALUES, _N_EVALUATIONS = 20, 16_000
#: points from which the variance over the search space is computed
_N_VARIANCE = 1024
#: shares of the drawn functions below the ends and the middle of a band, which holds nine of ten
_BAND = (5.0, 50.0, 95.0)

#: lower end, middle and upper end of a band
Band = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Effect of one parameter."""

    name: str
    #: share of the variance, 0 to 1, that is gone without the parameter
    importance: Band
    #: values of the parameter, ascending or in the order of its categories
    values: list[Value]
    #: figure of merit that is expected at each value
    dependence: list[Band]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """Effects of all parameters that are searched, the most important first."""

    effects: list[Effect]
    #: number of complete trials
    n_trials: int
    #: share of the variance that the process explains of each trial by all others, at most 1; 0 or less: it knows
    #: nothing
    explained: float


def effects_of(space: Space, points: Sequence[Point], figures: Sequence[float], *, maximise: bool = False) -> Effects:
    """Return the effects of the parameters of `space`.

    Args:
        space: space of all points.
        points: points of complete trials, at least `MIN_TRIALS`.
        figures: finite figure of merit of each.
        maximise: True if a higher figure is better.

    Raises:
        ValueError: too few trials, or no parameter has two values.
        LinAlgError: no smooth function has these figures.
    """
    searched = [i for i, parameter in enumerate(space.parameters) if not isinstance(parameter, Constant)]
    if len(points) < MIN_TRIALS or not searched:
        raise ValueError(f"Effects need {MIN_TRIALS} complete trials. Received: {len(points)}.")
    surrogate = _Surrogate(space, points, np.array(figures) * (-1.0 if maximise else 1.0))
    rng = np.random.default_rng(0)
    n_parameters = len(space.parameters)
    columns, _ = _columns_of(surrogate.encoding, hypercube(rng, _N_VARIANCE, n_parameters))
    variance = surrogate(columns).var(axis=0)
    n_points = min(128, max(16, _N_EVALUATIONS // (_N_VALUES * len(searched))))
    base = hypercube(rng, n_points, n_parameters)
    effects = [_effect(surrogate, i, base, np.maximum(variance, 1e-12)) for i in searched]
    if maximise:
        effects = [replace(e, dependence=[(-high, -mid, -low) for low, mid, high in e.dependence]) for e in effects]
    effects.sort(key=lambda effect: -effect.importance[1])
    return Effects(effects=effects, n_trials=len(points), explained=surrogate.explained)


class _Surrogate:
    """Functions drawn from the Gaussian process of the losses, in units in which they have mean 0 and variance 1."""

    def __init__(self, space: Space, points: Sequence[Point], losses: np.ndarray) -> None:
        self.encoding = Encoding(space)
        with np.errstate(over="ignore"):
            away = _MOST_ABOVE * (np.median(losses) - losses.min())
        self._losses = losses = np.minimum(losses, losses.min() + (away or np.inf))
        warped = warp(losses)
        seen = representative(warped, _MAX_SEEN)
        self._mean, self._std = float(warped[seen].mean()), float(warped[seen].std()) or 1.0
        observations = Observations(
            columns=self.encoding.columns([points[row] for row in seen]),
            groups=self.encoding.groups,
            values=standardise(warped[seen]),
            relative_noise=np.ones(len(seen)),
        )
        fitted = representative(observations.values, _MAX_FITTED)
        hyperparameters = fit_hyperparameters(_rows(observations, fitted))
        posterior = Posterior(hyperparameters, observations, mean=0.0)
        missed = observations.values - posterior.left_out()[:, 0]
        #: share of the variance that is explained of each trial by all others
        self.explained = 1.0 - float((missed**2).sum() / ((observations.values**2).sum() or 1.0))
        self._draw_features(hyperparameters, np.random.default_rng(1))
        noise = np.sqrt(hyperparameters.noise) * np.random.default_rng(2).normal(size=(len(seen), _N_DRAWS))
        residuals = observations.values[:, None] - self._features(observations.columns) - noise
        corrections = replace(observations, values=residuals)
        #: process whose means, one for each function, correct the sums of features
        self._correction = Posterior(hyperparameters, corrections, mean=0.0)

    def _draw_features(self, hyperparameters: Hyperparameters, rng: np.random.Generator) -> None:
        lengths = hyperparameters.lengths[self.encoding.groups]
        # The spectral density of Matérn 5/2 is Student's t with 5 degrees of freedom.
        scales = np.sqrt(5.0 / rng.chisquare(5.0, _N_FEATURES))
        self._frequencies = rng.normal(size=(len(lengths), _N_FEATURES)) * scales / lengths[:, None]
        self._phases = rng.uniform(0.0, 2.0 * np.pi, _N_FEATURES)
        weights = rng.normal(size=(_N_FEATURES, _N_DRAWS))
        self._weights = np.sqrt(2.0 * hyperparameters.scale / _N_FEATURES) * weights

    def _features(self, columns: np.ndarray) -> np.ndarray:
        return np.cos(columns @ self._frequencies + self._phases) @ self._weights

    def __call__(self, columns: np.ndarray) -> np.ndarray:
        """Return the values (m, n_draws) of the functions at encoded points (m, width)."""
        return self._features(columns) + self._correction.predict(columns)[0]

    def losses(self, values: np.ndarray) -> np.ndarray:
        """Return values of the functions as losses."""
        return unwarp(np.minimum(values * self._std + self._mean, 300.0), self._losses)


def _rows(of: Observations, rows: np.ndarray) -> Observations:
    return Observations(of.columns[rows], of.groups, of.values[rows], of.relative_noise[rows])


def _columns_of(encoding: Encoding, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the encoded points of many quantiles (m, n_parameters), and which parameters each has.

    Returns:
        (m, width) float64 and (m, n_parameters) bool.
    """
    snapped = encoding.quantiles.snapped(units)
    return encoding.of_snapped(snapped), ~np.isnan(snapped)


def _effect(surrogate: _Surrogate, i: int, base: np.ndarray, variance: np.ndarray) -> Effect:
    """Return the effect of parameter number `i`.

    Args:
        surrogate: functions of the points.
        i: number of the parameter in the space.
        base: quantiles (n_points, n_parameters) of points at which it takes its values.
        variance: of each function over the space, (n_draws,).
    """
    parameter = surrogate.encoding.space.parameters[i]
    grid, weights = _grid(parameter)
    rows = np.repeat(base[None], len(grid), axis=0)
    rows[:, :, i] = grid[:, None]
    columns, active = _columns_of(surrogate.encoding, rows.reshape(-1, base.shape[1]))
    at = surrogate(columns).reshape(len(grid), len(base), -1)
    spread = np.average((at - np.average(at, axis=0, weights=weights)) ** 2, axis=0, weights=weights)
    shares = np.minimum(spread.mean(axis=0) / variance, 1.0)
    having = active[:, i].reshape(len(grid), -1)[0]
    values = [parameter.from_unit(unit) for unit in grid.tolist()] if having.any() else []
    means = surrogate.losses(at[:, having].mean(axis=1)) if values else np.empty((0, 1))
    return Effect(name=parameter.name, importance=_bands(shares[None])[0], values=values, dependence=_bands(means))


def _grid(parameter: Parameter) -> tuple[np.ndarray, np.ndarray]:
    """Return quantiles of all values of a parameter, or of some if there are many, with their chances."""
    n_values = parameter.n_values
    if n_values is None or n_values > _N_VALUES:
        return (np.arange(_N_VALUES) + 0.5) / _N_VALUES, np.ones(_N_VALUES)
    drawn = [parameter.index(parameter.from_unit((k + 0.5) / _N_VARIANCE)) for k in range(_N_VARIANCE)]
    quantiles = [parameter.to_unit(parameter.value_at(index)) for index in range(n_values)]
    return np.array(quantiles), np.bincount(drawn, minlength=n_values)


def _bands(values: np.ndarray) -> list[Band]:
    """Return the band of each row of values (n, n_draws)."""
    return [(low, middle, high) for low, middle, high in np.percentile(values, _BAND, axis=1).T.tolist()]
