"""Effects of parameters on the figure of merit, from a Gaussian process fitted to the complete trials.

The process is fitted as in `core.search.bayesian`, to figures compressed by `core.search.targets.warp`. Distances from
the best figure are clipped at `_MOST_ABOVE` times the median distance, so that diverged trials do not dominate. The
uncertainty of the process is the spread of functions sampled from it. Each is a sum of random features, corrected at
the trials (Wilson et al., 2020, ICML, "Efficiently sampling functions from Gaussian process posteriors", eq. 13;
features: Rahimi and Recht, 2007, NeurIPS).

Importance is Sobol's total index: the share of the variance over the search space that remains on average if all other
parameters are known (Homma and Saltelli, 1996, Reliability Engineering and System Safety 52, 1, eq. 7). Points are
drawn at random, without regard to likely values, and each parameter is then varied over its values. Shares of
interacting parameters overlap, so their sum may exceed 1.

Partial dependence is the mean over such points with one parameter set to a value (Friedman, 2001, Annals of Statistics
29, 1189, section 8.2). Points without the parameter are left out of the means.
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

#: complete trials needed
MIN_TRIALS = 5
#: most trials used to fit hyperparameters, and most used in the process
_MAX_FITTED, _MAX_SEEN = 128, 256
#: largest distance of a figure from the best one, in units of the median distance
_MOST_ABOVE = 10.0
#: number of sampled functions, and features of each
_N_DRAWS, _N_FEATURES = 64, 256
#: values used of a parameter with many; most points times values over all parameters
_N_VALUES, _N_EVALUATIONS = 20, 16_000
#: points used to compute the variance over the search space
_N_VARIANCE = 1024
#: percentiles of the sampled functions at the ends and in the middle of a band, which contains nine of ten
_BAND = (5.0, 50.0, 95.0)

#: lower end, middle and upper end of a band
Band = tuple[float, float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Effect of one parameter."""

    name: str
    #: share of the variance due to the parameter, 0 to 1
    importance: Band
    #: values of the parameter, ascending or in the order of its categories
    values: list[Value]
    #: expected figure of merit at each value
    dependence: list[Band]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """Effects of all searched parameters, most important first."""

    effects: list[Effect]
    #: number of complete trials
    n_trials: int
    #: leave-one-out share of the variance explained by the process, at most 1; if 0 or less, it explains nothing
    explained: float


def effects_of(space: Space, points: Sequence[Point], figures: Sequence[float], *, maximise: bool = False) -> Effects:
    """Return the effects of the parameters of `space`.

    Args:
        space: space of all points.
        points: points of complete trials, at least `MIN_TRIALS`.
        figures: finite figure of merit of each.
        maximise: True if a higher figure is better.

    Raises:
        ValueError: there are too few trials, or no parameter varies.
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
    """Functions sampled from the Gaussian process of the losses, scaled to mean 0 and variance 1."""

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
        #: leave-one-out share of the variance explained
        self.explained = 1.0 - float((missed**2).sum() / ((observations.values**2).sum() or 1.0))
        self._draw_features(hyperparameters, np.random.default_rng(1))
        noise = np.sqrt(hyperparameters.noise) * np.random.default_rng(2).normal(size=(len(seen), _N_DRAWS))
        residuals = observations.values[:, None] - self._features(observations.columns) - noise
        corrections = replace(observations, values=residuals)
        #: process whose means, one per function, correct the sums of features
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
        """Convert values of the functions to losses."""
        return unwarp(np.minimum(values * self._std + self._mean, 300.0), self._losses)


def _rows(of: Observations, rows: np.ndarray) -> Observations:
    return Observations(of.columns[rows], of.groups, of.values[rows], of.relative_noise[rows])


def _columns_of(encoding: Encoding, units: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Encode points given by quantiles (m, n_parameters); also return which parameters each point has.

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
        base: quantiles (n_points, n_parameters) of the points at which the parameter is varied.
        variance: variance of each function over the space, (n_draws,).
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
    """Return the quantiles of a parameter's values, or of some if there are many, and their probabilities."""
    n_values = parameter.n_values
    if n_values is None or n_values > _N_VALUES:
        return (np.arange(_N_VALUES) + 0.5) / _N_VALUES, np.ones(_N_VALUES)
    drawn = [parameter.index(parameter.from_unit((k + 0.5) / _N_VARIANCE)) for k in range(_N_VARIANCE)]
    quantiles = [parameter.to_unit(parameter.value_at(index)) for index in range(n_values)]
    return np.array(quantiles), np.bincount(drawn, minlength=n_values)


def _bands(values: np.ndarray) -> list[Band]:
    """Return the band of each row of values (n, n_draws)."""
    return [(low, middle, high) for low, middle, high in np.percentile(values, _BAND, axis=1).T.tolist()]
