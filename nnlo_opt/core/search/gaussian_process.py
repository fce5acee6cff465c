"""Gaussian process with a Matérn 5/2 or exponential kernel and one length scale per parameter.

The kernel may have an additive part, the mean of one-parameter kernels with the same length scales (Duvenaud, Nickisch
and Rasmussen, 2011, NeurIPS): what it learns about one parameter applies to all values of the others.

`fit_hyperparameters` finds the maximum a posteriori of the hyperparameters by the analytic gradient of the marginal
likelihood (Rasmussen and Williams, 2006, eq. 5.9). A `Posterior` holds the factorised covariance and predicts, with
gradients. Inputs are rows of columns of order one. An unordered parameter has several columns; `groups` gives the
parameter of each column, and all columns of a parameter share its length scale.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.linalg import lapack
from scipy.optimize import minimize
from scipy.special import expit

from nnlo_opt.core.base.records import Frozen

#: derivatives of a value with respect to means and variances -> its derivatives with respect to columns
Pullback = Callable[[np.ndarray, np.ndarray], np.ndarray]
#: overwrites scaled distances with a kernel, a second array with its derivative by their squares, a third one as memory
Kernel = Callable[[np.ndarray, np.ndarray, np.ndarray], None]
#: `Posterior.along`
Along = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray, Pullback]]

_SQRT5 = float(np.sqrt(5.0))
#: normal priors as (mean, standard deviation) of the logarithms of a length scale, the process variance and the noise
#: variance, both relative to the variance of the values; and the standard deviation of the process mean, relative to
#: that of the values
_LOG_LENGTH, _LOG_SCALE, _LOG_NOISE = (0.0, 1.0), (0.0, 1.0), (-9.0, 3.0)
_MEAN_STD = 1.0
#: the same for the logit of the additive part's share of the variance, and bounds of the logit
_LOGIT_ADDITIVE, _LOGIT_BOUNDS = (0.0, 1.5), (-6.0, 6.0)
_LOG_BOUNDS = {"length": (-3.5, 6.0), "scale": (-4.0, 6.0), "noise": (-16.0, 1.0)}
#: most steps of the optimisation of hyperparameters
_MAX_STEPS = 60
#: kernels are looked up if a parameter has at least this many pairs of points per distinct distance, or points per
#: distinct value; the latter only for many points
_N_REPEATED, _MANY_POINTS = 8, 100
#: fraction of the process variance added to the diagonal, which keeps the covariance of close points invertible
_JITTER = 1e-9


class Hyperparameters(Frozen):
    """Hyperparameters of a covariance."""

    #: length scale of each parameter, (n_parameters,) float64, positive
    lengths: np.ndarray
    #: variance of the process
    scale: float
    #: variance of the noise of an observation whose relative noise is 1
    noise: float
    #: share of the additive part in the variance, 0 to 1
    additive: float = 0.0
    #: see `Assumptions`
    is_rough: bool = False


@dataclass(frozen=True, slots=True)
class Observations:
    """Observed values and the points at which they were observed."""

    #: encoded points, (n, width) float64
    columns: np.ndarray
    #: index of the parameter of each column from 0, (width,) int
    groups: np.ndarray
    #: (n,) float64, or (n, n_fantasies) for joint fantasies
    values: np.ndarray
    #: variance of the noise of each value, as a multiple of `Hyperparameters.noise`, (n,) float64
    relative_noise: np.ndarray
    #: rows of infeasible points, which cannot be the incumbent
    infeasible: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Assumptions:
    """Assumptions of a fit about the function."""

    #: True for a kernel with an additive part
    is_additive: bool = False
    #: normal prior of the logarithm of the variance of the noise, as (mean, standard deviation)
    log_noise: tuple[float, float] = _LOG_NOISE
    #: True for an exponential kernel, whose functions are continuous, but full of kinks
    is_rough: bool = False


PLAIN = Assumptions()
#: expects noise of about a tenth of the standard deviation of the values
NOISY_LOG_NOISE = (-4.0, 1.0)


def fit_hyperparameters(observations: Observations, assumed: Assumptions = PLAIN) -> Hyperparameters:
    """Return the maximum a posteriori; the values should have mean 0 and variance 1."""
    likelihood = _Likelihood(observations, assumed)
    n = likelihood.n_parameters
    bounds = [_LOG_BOUNDS["length"]] * n + [_LOG_BOUNDS["scale"], _LOG_BOUNDS["noise"]]
    # Starts of the optimisation: logarithms of lengths, scale and noise.
    smooth = [0.5 * np.log(n)] * n + [_LOG_SCALE[0], -6.0]
    rough = [-1.0] * n + [_LOG_SCALE[0], -3.0]
    if assumed.is_additive:
        bounds, smooth, rough = ([*of, more] for of, more in ((bounds, _LOGIT_BOUNDS), (smooth, 0.0), (rough, 0.0)))
    found = [
        minimize(likelihood.loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _MAX_STEPS})
        for start in np.array([smooth, rough])
    ]
    logs = min(found, key=lambda result: result.fun).x
    additive = float(expit(logs[n + 2])) if assumed.is_additive else 0.0
    scale, noise = np.exp(logs[n : n + 2]).tolist()
    return Hyperparameters(
        lengths=np.exp(logs[:n]), scale=scale, noise=noise, additive=additive, is_rough=assumed.is_rough
    )


class _Likelihood:
    """Negative logarithm of the posterior density of the hyperparameters, up to a constant."""

    def __init__(self, observations: Observations, assumed: Assumptions = PLAIN) -> None:
        self.n_parameters = int(observations.groups.max()) + 1
        self._assumed = assumed
        self._values = observations.values
        self._relative_noise = observations.relative_noise
        n = len(self._values)
        #: row and column indices of the lower triangle without the diagonal, the only part that LAPACK reads
        self._lower = np.tril_indices(n, -1)
        #: squared distance of each pair along each parameter, (n_parameters, pairs)
        self._squares = np.zeros((self.n_parameters, len(self._lower[0])))
        for column, group in zip(observations.columns.T, observations.groups, strict=True):
            self._squares[group] += (column[self._lower[0]] - column[self._lower[1]]) ** 2
        #: one-parameter kernels for the additive part
        self._each = _Each(self._squares, _kernel(assumed.is_rough)) if assumed.is_additive else None

    def loss(self, logs: np.ndarray) -> tuple[float, np.ndarray]:
        """Return value and gradient at the logarithms of lengths, scale and noise, and the logit of the share."""
        n = self.n_parameters
        weights, (scale, noise) = np.exp(-2.0 * logs[:n]), np.exp(logs[n : n + 2]).tolist()
        product, slope = _applied(_kernel(self._assumed.is_rough), np.sqrt(weights @ self._squares))
        correlation = product
        if self._each is not None:
            share = float(expit(logs[n + 2]))
            each, bent_each = self._each.at(np.exp(-logs[:n]))
            additive = each.mean(axis=0)
            correlation = product + share * (additive - product)
        covariance = np.zeros((len(self._values),) * 2)
        covariance[self._lower] = scale * correlation
        np.fill_diagonal(covariance, scale * (1.0 + _JITTER) + noise * self._relative_noise)
        factor, info = lapack.dpotrf(covariance, lower=1, clean=0, overwrite_a=1)
        if info:
            return 1e10, np.zeros(len(logs))
        both = lapack.dpotrs(factor, np.column_stack([self._values, np.ones(len(self._values))]), lower=1)[0]
        mean = _mean(both)
        alpha = both[:, 0] - mean * both[:, 1]
        value = 0.5 * ((self._values - mean) @ alpha + (mean / _MEAN_STD) ** 2) + np.log(factor.diagonal()).sum()
        inverse = lapack.dpotri(factor, lower=1, overwrite_c=1)[0]
        # Half of (K^-1 - alpha alpha^T); its product with a derivative of K is the derivative of the loss; pairs count
        # twice.
        pairs = inverse[self._lower] - alpha[self._lower[0]] * alpha[self._lower[1]]
        diagonal = 0.5 * (inverse.diagonal() - alpha**2)
        gradient = np.empty(len(logs))
        along = self._squares @ (pairs * slope)
        if self._each is not None:
            along = (1.0 - share) * along + (share / n) * (bent_each @ pairs)
            gradient[n + 2] = scale * share * (1.0 - share) * (pairs @ (additive - product))
        gradient[:n] = along * scale * weights * -2.0
        gradient[n] = scale * (pairs @ correlation + diagonal.sum() * (1.0 + _JITTER))
        gradient[n + 1] = noise * (diagonal @ self._relative_noise)
        return self._with_priors(value, gradient, logs)

    def _with_priors(self, value: float, gradient: np.ndarray, logs: np.ndarray) -> tuple[float, np.ndarray]:
        n = self.n_parameters
        priors = [_LOG_LENGTH] * n + [_LOG_SCALE, self._assumed.log_noise, _LOGIT_ADDITIVE]
        means, stds = np.array(priors[: len(logs)]).T
        away = (logs - means) / stds
        return float(value + 0.5 * away @ away), gradient + away / stds


class _Each:
    """One-parameter kernels for pairs of points with these squared distances (n_parameters, pairs).

    Categories and small integer ranges have few distinct distances, and a look-up costs a tenth of an exponential.
    """

    def __init__(self, squares: np.ndarray, kernel: Kernel) -> None:
        #: for parameters with few distances: all distinct distances in one array, their squares and their parameters
        self._levels, self._squares_of_levels, self._parameters = np.empty(0), np.empty(0), np.empty(0, dtype=int)
        levels: list[np.ndarray] = []
        numbers: list[np.ndarray] = []
        few: list[int] = []
        for parameter, row in enumerate(squares):
            different, number = np.unique(row, return_inverse=True)
            if len(different) * _N_REPEATED <= len(row):
                numbers.append(number + sum(map(len, levels)))
                levels.append(different)
                few.append(parameter)
        self._kernel, self._few = kernel, few
        self._many = [parameter for parameter in range(len(squares)) if parameter not in few]
        if few:
            self._squares_of_levels = np.concatenate(levels)
            self._parameters = np.repeat(few, [*map(len, levels)])
        self._levels = np.sqrt(self._squares_of_levels)
        #: index of each pair's distance, for each parameter with few distances
        self._numbers = numbers
        self._squares, self._distances = squares, np.sqrt(squares)
        #: results; the memory is reused, because allocating it costs more than the arithmetic
        self._kernels, self._bent = np.empty_like(squares), np.empty_like(squares)
        self._decay = np.empty(squares.shape[1])

    def at(self, inverse_lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the kernels, and their derivatives by scaled squares times those squares, (n_parameters, pairs).

        The next call overwrites both.
        """
        of_levels, slope = _applied(self._kernel, inverse_lengths[self._parameters] * self._levels)
        slope *= self._squares_of_levels
        for parameter, numbers in zip(self._few, self._numbers, strict=True):
            np.take(of_levels, numbers, out=self._kernels[parameter], mode="clip")
            np.take(slope, numbers, out=self._bent[parameter], mode="clip")
        for parameter in self._many:
            kernel, bent = self._kernels[parameter], self._bent[parameter]
            np.multiply(inverse_lengths[parameter], self._distances[parameter], out=kernel)
            self._kernel(kernel, bent, self._decay)
            bent *= self._squares[parameter]
        return self._kernels, self._bent


def _mean(solved: np.ndarray) -> float:
    """Return the most likely mean of the process, given `solved` (n, 2): covariance^-1 (values, ones)."""
    return float(solved[:, 0].sum() / (solved[:, 1].sum() + _MEAN_STD**-2))


def _kernel(is_rough: bool) -> Kernel:
    return _exponential if is_rough else _matern


def _applied(kernel: Kernel, distances: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the kernel of scaled distances, and its derivative with respect to their squares."""
    values = distances.copy()
    slope = np.empty_like(values)
    kernel(values, slope, np.empty_like(values))
    return values, slope


def _exponential(distances: np.ndarray, slope: np.ndarray, decay: np.ndarray) -> None:
    """Exponential kernel (Matérn 1/2)."""
    np.negative(distances, out=decay)
    np.exp(decay, out=decay)
    np.maximum(distances, 1e-10, out=slope)  # the slope is infinite at 0
    np.divide(decay, slope, out=slope)
    slope *= -0.5
    distances[...] = decay


def _matern(distances: np.ndarray, slope: np.ndarray, decay: np.ndarray) -> None:
    """Matérn 5/2."""
    distances *= _SQRT5
    np.negative(distances, out=decay)
    np.exp(decay, out=decay)
    np.add(distances, 1.0, out=slope)
    slope *= decay
    distances *= distances
    distances *= 1.0 / 3.0
    distances *= decay
    distances += slope
    slope *= -5.0 / 6.0


class Posterior:
    """Gaussian process conditioned on observations; several columns of values are fantasies.

    Args:
        hyperparameters: hyperparameters of the covariance.
        observations: values and their points.
        mean: mean of the process; None for the most likely mean.

    Raises:
        LinAlgError: the covariance has no Cholesky factor.
    """

    def __init__(self, hyperparameters: Hyperparameters, observations: Observations, mean: float | None = None) -> None:
        values = observations.values
        self.hyperparameters = hyperparameters
        self._kernel = _kernel(hyperparameters.is_rough)
        self._observations = observations
        self._values = values if values.ndim == 2 else values[:, None]
        #: divisor of each column, (width,)
        self._lengths = hyperparameters.lengths[observations.groups]
        #: scaled points, (n, width)
        self._seen = observations.columns / self._lengths
        covariance = self._covariance(self._seen, self._seen)
        noise = hyperparameters.noise * observations.relative_noise + _JITTER * hyperparameters.scale
        covariance[np.diag_indices_from(covariance)] += noise
        factor = _cholesky(covariance)
        #: inverse of the lower Cholesky factor of the covariance
        self._inverse_factor = lapack.dtrtri(factor, lower=1)[0]
        if mean is None:
            halves = self._inverse_factor @ np.column_stack([self._values.mean(axis=1), np.ones(len(values))])
            mean = _mean(self._inverse_factor.T @ halves)
        #: mean far from all observations
        self._mean = mean
        #: covariance^-1 (values - mean), (n, n_fantasies)
        self._alpha = self._inverse_factor.T @ (self._inverse_factor @ (self._values - mean))
        own = self._values - noise[:, None] * self._alpha
        feasible = np.delete(own, observations.infeasible, 0)
        #: incumbent, (n_fantasies,): the lowest posterior mean at observed feasible points; the highest of all if none
        #: is feasible
        self.least = feasible.min(axis=0) if len(feasible) else own.max(axis=0)

    def predict(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return means (m, n_fantasies) and variances (m,) of the process at `columns` (m, width)."""
        return self._predicted(self._covariance(columns / self._lengths, self._seen))

    def predict_with_known(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return means and variances as `predict` does, and True, (m,), for near copies of observed points.

        At such a point the process differs by less than the noise of one value, so a trial there is almost useless.
        """
        covariance = self._covariance(columns / self._lengths, self._seen)
        apart = 2.0 * (self.hyperparameters.scale - covariance.max(axis=1))
        return *self._predicted(covariance), apart < self.hyperparameters.noise

    def _predicted(self, covariance: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        explained = ((covariance @ self._inverse_factor.T) ** 2).sum(axis=1)
        return self._mean + covariance @ self._alpha, self._positive(self.hyperparameters.scale - explained)

    def along(self, columns: np.ndarray, free: np.ndarray) -> Along:
        """Return the process as a function of the columns `free` (d,) only, each the single column of a parameter.

        The other columns keep their values from the rows `columns` (k, width), so their contribution is precomputed.
        The function takes row numbers (m,) and values (m, d); it returns means (m, n_fantasies), variances (m,) and a
        pullback, which maps derivatives with respect to means and variances to derivatives with respect to the values,
        (m, d).
        """
        hyperparameters, groups = self.hyperparameters, self._observations.groups
        scale, share, n = hyperparameters.scale, hyperparameters.additive, len(hyperparameters.lengths)
        held = np.setdiff1d(np.arange(len(groups)), free)
        scaled = columns[:, held] / self._lengths[held]
        away = scaled[:, None] - self._seen[:, held]
        squares = np.einsum("mnw,mnw->mn", away, away)
        held_sum = self._sum_of_each(scaled, self._seen[:, held], groups[held], n - len(free)) if share else squares
        seen, lengths, ones = self._seen[:, free], self._lengths[free], np.ones(len(free))

        def predicted(rows: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, Pullback]:
            away = (values / lengths)[:, None] - seen
            correlation, slope = _applied(self._kernel, np.sqrt(squares[rows] + (away * away) @ ones))
            bent = away * slope[..., None]
            if share:
                each, slope_each = _applied(self._kernel, np.abs(away))
                correlation = (1.0 - share) * correlation + (share / n) * (held_sum[rows] + each @ ones)
                bent = (1.0 - share) * bent + (share / n) * (away * slope_each)
            half = scale * (correlation @ self._inverse_factor.T)

            def pullback(by_means: np.ndarray, by_variances: np.ndarray) -> np.ndarray:
                by_covariance = by_means @ self._alpha.T - 2.0 * by_variances[:, None] * (half @ self._inverse_factor)
                return 2.0 * np.matmul((scale * by_covariance)[:, None], bent)[:, 0] / lengths

            means = self._mean + scale * (correlation @ self._alpha)
            return means, self._positive(scale - (half**2).sum(axis=1)), pullback

        return predicted

    def draw(self, columns: np.ndarray, normals: np.ndarray) -> np.ndarray:
        """Draw joint samples (p, n_draws) at `columns` (p, width) from the standard normal `normals`."""
        scaled = columns / self._lengths
        cross = self._covariance(scaled, self._seen)
        half = cross @ self._inverse_factor.T
        joint = self._covariance(scaled, scaled) - half @ half.T
        joint[np.diag_indices_from(joint)] += 1e-6 * self.hyperparameters.scale
        return self._mean + cross @ self._alpha + _cholesky(joint) @ normals

    def left_out(self) -> np.ndarray:
        """Return the leave-one-out mean of each observation, (n, n_fantasies).

        Sundararajan and Keerthi, 2001, Neural Computation 13, 1103, eq. 11.
        """
        return self._values - self._alpha / (self._inverse_factor**2).sum(axis=0)[:, None]

    @property
    def log_likelihood(self) -> float:
        """Log density of the observed values (the first column), up to a constant that depends on their number."""
        first = self._values[:, 0] - self._mean
        return float(np.log(self._inverse_factor.diagonal()).sum() - 0.5 * first @ self._alpha[:, 0])

    def left_out_variances(self) -> np.ndarray:
        """Return the leave-one-out variance of each observation, noise included, (n,); eq. 12 there."""
        return 1.0 / (self._inverse_factor**2).sum(axis=0)

    def with_values(self, columns: np.ndarray, values: np.ndarray) -> "Posterior":
        """Return the posterior conditioned also on `values` (p, n_fantasies) at `columns` (p, width)."""
        seen, n = self._observations, values.shape[1]
        extended = Observations(
            np.concatenate([seen.columns, columns]),
            seen.groups,
            np.concatenate([np.broadcast_to(self._values, (len(self._values), n)), values]),
            np.concatenate([seen.relative_noise, np.ones(len(columns))]),
            seen.infeasible,
        )
        return Posterior(self.hyperparameters, extended, self._mean)

    def _covariance(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        correlation, share = _applied(self._kernel, _distances(one, other))[0], self.hyperparameters.additive
        if share:
            n = len(self.hyperparameters.lengths)
            additive = self._sum_of_each(one, other, self._observations.groups, n)
            correlation += share * (additive / n - correlation)
        return self.hyperparameters.scale * correlation

    def _sum_of_each(self, one: np.ndarray, other: np.ndarray, groups: np.ndarray, n: int) -> np.ndarray:
        """Return the sum of `n` one-parameter kernels, for all pairs of rows of two arrays of scaled columns.

        A parameter without a column is constant.
        """
        different = np.unique(groups)
        total = np.full((len(one), len(other)), n - len(different), dtype=float)
        for group in different:
            mine, others = one[:, groups == group], other[:, groups == group]
            if len(mine) >= _MANY_POINTS:
                # The columns of a category are 0 but for one, so the product tells categories apart.
                _, first, numbers = np.unique(
                    mine @ np.arange(1.0, mine.shape[1] + 1.0), return_index=True, return_inverse=True
                )
                if len(first) * _N_REPEATED <= len(mine):
                    total += _applied(self._kernel, _distances(mine[first], others))[0][numbers]
                    continue
            total += _applied(self._kernel, _distances(mine, others))[0]
        return total

    def _positive(self, variance: np.ndarray) -> np.ndarray:
        return np.maximum(variance, 1e-12 * self.hyperparameters.scale)


def _distances(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Return the distances between rows, (len(one), len(other))."""
    if one.shape[1] == 1:
        return np.abs(one - other.T)
    squares = (one**2).sum(axis=1)[:, None] + (other**2).sum(axis=1) - 2.0 * (one @ other.T)
    return np.sqrt(np.maximum(squares, 0.0))


def _cholesky(covariance: np.ndarray) -> np.ndarray:
    """Return the lower Cholesky factor, raising the diagonal until it exists."""
    jitter = 0.0
    for _ in range(12):
        raised = covariance + jitter * np.eye(len(covariance))
        factor, info = lapack.dpotrf(raised, lower=1, clean=1)
        if not info:
            return factor
        jitter = max(10.0 * jitter, 1e-10 * float(covariance.diagonal().max()))
    raise np.linalg.LinAlgError("A covariance could not be factorised.")
