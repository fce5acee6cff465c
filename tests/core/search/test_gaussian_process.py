import numpy as np
import pytest
from scipy.optimize import approx_fprime

from nnlo_opt.core.search.acquisition import Acquisition, log_improvement
from nnlo_opt.core.search.gaussian_process import (
    NOISY_LOG_NOISE,
    Assumptions,
    Hyperparameters,
    Observations,
    Posterior,
    _Likelihood,
    fit_hyperparameters,
)
from nnlo_opt.core.search.margins import Bounded

GROUPS = np.array([0, 1, 1, 2])
HYPERPARAMETERS = Hyperparameters(lengths=np.array([0.5, 1.2, 0.8]), scale=1.4, noise=0.01)
ADDITIVE = Hyperparameters(lengths=np.array([0.5, 1.2, 0.8]), scale=1.4, noise=0.01, additive=0.4)
ROUGH = Hyperparameters(lengths=np.array([0.5, 1.2, 0.8]), scale=1.4, noise=0.01, additive=0.4, is_rough=True)


def observations(n=20, seed=0, noise=0.0):
    rng = np.random.default_rng(seed)
    columns = rng.random((n, 4))
    values = np.sin(5 * columns[:, 0]) + columns[:, 3] ** 2 + noise * rng.normal(size=n)
    return Observations(columns, GROUPS, (values - values.mean()) / values.std(), rng.uniform(0.5, 2.0, n))


def dense(hyperparameters, one, other):
    """The covariance, written out."""
    squares = ((one[:, None] - other[None]) / hyperparameters.lengths[GROUPS]) ** 2

    def kernel(r):
        if hyperparameters.is_rough:
            return np.exp(-r)
        return (1 + np.sqrt(5) * r + 5 / 3 * r**2) * np.exp(-np.sqrt(5) * r)

    product = kernel(np.sqrt(squares.sum(-1)))
    mean = np.mean([kernel(np.sqrt(squares[..., group == GROUPS].sum(-1))) for group in range(3)], axis=0)
    return hyperparameters.scale * ((1 - hyperparameters.additive) * product + hyperparameters.additive * mean)


def test_likelihood_is_the_closed_form_and_its_gradient_the_difference_quotient():
    seen = observations()
    likelihood = _Likelihood(seen)
    one, other = (np.array([np.log(0.5), 0.1, -0.3, 0.4, -4.0 + step]) for step in (0.0, 1.0))

    def closed_form(logs):
        hyperparameters = Hyperparameters(lengths=np.exp(logs[:3]), scale=np.exp(logs[3]), noise=0.0)
        k = dense(hyperparameters, seen.columns, seen.columns) + np.exp(logs[4]) * np.diag(seen.relative_noise)
        # The most likely mean leaves of the values what a constant of its prior variance, 1, cannot explain.
        return 0.5 * seen.values @ np.linalg.solve(k + 1.0, seen.values) + 0.5 * np.linalg.slogdet(k)[1]

    def without_priors(logs):
        return likelihood.loss(logs)[0] - likelihood._with_priors(0.0, np.zeros(5), logs)[0]

    assert without_priors(one) - without_priors(other) == pytest.approx(closed_form(one) - closed_form(other), rel=1e-6)
    gradient = likelihood.loss(one)[1]
    np.testing.assert_allclose(
        gradient, approx_fprime(one, lambda x: likelihood.loss(x)[0], 1e-7), rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize("is_rough", [False, True])
@pytest.mark.parametrize("additive", [0.3, 1.0])
def test_gradient_with_an_additive_part_is_the_difference_quotient(additive, is_rough):
    likelihood = _Likelihood(observations(), Assumptions(is_additive=True, is_rough=is_rough))
    logs = np.array([np.log(0.5), 0.1, -0.3, 0.4, -4.0, additive])
    expected = approx_fprime(logs, lambda x: likelihood.loss(x)[0], 1e-7)
    np.testing.assert_allclose(likelihood.loss(logs)[1], expected, rtol=1e-4, atol=1e-4)


def test_without_interactions_the_additive_part_is_most_and_tells_of_combinations_never_seen():
    rng = np.random.default_rng(0)
    columns = rng.random((40, 4))
    columns = columns[(columns[:, 0] < 0.5) | (columns[:, 3] < 0.5)]
    values = np.sin(5 * columns[:, 0]) + 2.0 * columns[:, 3]
    seen = Observations(columns, GROUPS, (values - values.mean()) / values.std(), np.ones(len(values)))
    asked = np.column_stack([rng.uniform(0.7, 1.0, 20), rng.random((20, 2)), rng.uniform(0.7, 1.0, 20)])
    expected = (np.sin(5 * asked[:, 0]) + 2.0 * asked[:, 3] - values.mean()) / values.std()
    product, both = (fit_hyperparameters(seen, Assumptions(is_additive=additive)) for additive in (False, True))
    errors = [np.abs(Posterior(one, seen).predict(asked)[0][:, 0] - expected).mean() for one in (product, both)]
    assert product.additive == 0.0
    assert both.additive > 0.5
    assert errors[1] < 0.5 * errors[0]


def test_a_function_full_of_kinks_is_more_probable_with_an_exponential_kernel():
    rng = np.random.default_rng(0)
    columns = rng.random((40, 1))
    steps = np.cumsum(rng.normal(size=40))[np.argsort(np.argsort(columns[:, 0]))]
    seen = Observations(columns, np.zeros(1, int), (steps - steps.mean()) / steps.std(), np.full(40, 1e-9))
    rough, smooth = (fit_hyperparameters(seen, Assumptions(is_rough=is_rough)) for is_rough in (True, False))
    assert Posterior(rough, seen).log_likelihood > Posterior(smooth, seen).log_likelihood + 5.0


def test_a_prior_of_noise_decides_what_few_values_cannot():
    seen = observations(6)
    expecting = fit_hyperparameters(seen, Assumptions(log_noise=NOISY_LOG_NOISE))
    assert fit_hyperparameters(seen).noise < 1e-3 < expecting.noise


@pytest.mark.parametrize("hyperparameters", [HYPERPARAMETERS, ADDITIVE, ROUGH])
def test_posterior_is_the_closed_form(hyperparameters):
    seen, asked = observations(), np.random.default_rng(1).random((7, 4))
    means, variances = Posterior(hyperparameters, seen).predict(asked)
    k = dense(hyperparameters, seen.columns, seen.columns) + 0.01 * np.diag(seen.relative_noise)
    cross = dense(hyperparameters, asked, seen.columns)
    ones = np.linalg.solve(k, np.ones(20))
    mean = (ones @ seen.values) / (ones.sum() + 1.0)
    np.testing.assert_allclose(means[:, 0], mean + cross @ np.linalg.solve(k, seen.values - mean), rtol=1e-6)
    np.testing.assert_allclose(variances, 1.4 - np.sum(cross * np.linalg.solve(k, cross.T).T, axis=1), rtol=1e-5)


def test_fantasies_agree_with_what_was_observed_and_spread_as_the_posterior_does():
    posterior, pending = Posterior(HYPERPARAMETERS, observations()), np.random.default_rng(2).random((3, 4))
    means, variances = posterior.predict(pending)
    imagined = posterior.draw(pending, np.random.default_rng(3).normal(size=(3, 20000)))
    drawn = posterior.with_values(pending, imagined)
    np.testing.assert_allclose(imagined.mean(axis=1), means[:, 0], atol=0.03)
    np.testing.assert_allclose(imagined.std(axis=1), np.sqrt(variances), rtol=0.05)
    means, variances = drawn.predict(pending)
    assert np.corrcoef(means.ravel(), imagined.ravel())[0, 1] > 0.99
    assert np.all(variances < 0.02)


def test_relative_noise_says_which_value_to_follow():
    columns, values = np.array([[0.5], [0.5]]), np.array([-1.0, 1.0])
    seen = Observations(columns, np.array([0]), values, np.array([0.1, 10.0]))
    mean = Posterior(Hyperparameters(lengths=np.ones(1), scale=1.0, noise=0.1), seen).predict(columns[:1])[0][0, 0]
    assert mean < -0.8


@pytest.mark.parametrize("noise", [0.0, 0.7])
def test_fit_finds_the_parameters_that_matter_and_the_noise(noise):
    fitted = fit_hyperparameters(observations(120, noise=noise))
    assert fitted.lengths[0] < fitted.lengths[2] < fitted.lengths[1]
    assert (fitted.noise > 0.05) == (noise > 0)


def test_values_that_are_all_equal_can_be_fitted():
    seen = observations()
    flat = Observations(seen.columns, GROUPS, np.zeros(20), seen.relative_noise)
    means, _ = Posterior(fit_hyperparameters(flat), flat).predict(seen.columns)
    np.testing.assert_allclose(means, 0.0)


@pytest.mark.parametrize("hyperparameters", [HYPERPARAMETERS, ADDITIVE, ROUGH])
@pytest.mark.parametrize("with_failures", [False, True])
def test_gradient_of_the_acquisition_is_the_difference_quotient(with_failures, hyperparameters):
    posterior = Posterior(hyperparameters, observations())
    pending = np.random.default_rng(2).random((3, 4))
    values = posterior.with_values(pending, posterior.draw(pending, np.random.default_rng(3).normal(size=(3, 6))))
    labels = np.where(observations().columns[:, 0] > 0.5, 1.0, -1.0)
    failing = Posterior(HYPERPARAMETERS, Observations(observations().columns, GROUPS, labels, np.ones(20)))
    acquisition = Acquisition(values, [Bounded(process=failing, high=0.0, noise=0.1)] * with_failures)
    rows = np.random.default_rng(4).random((5, 4))
    free = np.flatnonzero(np.bincount(GROUPS)[GROUPS] == 1)
    some = np.array([3, 1])
    values, gradients = acquisition.along(rows, free)(some, rows[some][:, free])
    np.testing.assert_allclose(values, acquisition(rows[some]), rtol=1e-6)
    for row, gradient in zip(rows[some], gradients, strict=True):
        expected = approx_fprime(row, lambda x: acquisition(x[None])[0], 1e-7)[free]
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-3)


def test_log_improvement_is_exact_where_the_improvement_is_a_number_and_smooth_beyond():
    from scipy.stats import norm

    z = np.linspace(-6, 8, 200)
    logs, slopes = log_improvement(z)
    np.testing.assert_allclose(logs, np.log(norm.pdf(z) + z * norm.cdf(z)), rtol=1e-6)
    np.testing.assert_allclose(slopes, norm.cdf(z) / np.exp(logs), rtol=1e-6)
    far = -np.geomspace(1.0, 1e8, 3000)
    logs, slopes = log_improvement(far)
    assert np.all(np.isfinite(logs))
    assert np.all(np.diff(logs) < 0)
    # Far below, log h(z) is -z^2/2 - 2 log|z| and its slope |z| + 2/|z|.
    beyond = np.abs(far) > 100
    np.testing.assert_allclose(logs[beyond], -0.5 * far[beyond] ** 2 - 2 * np.log(-far[beyond]) - 0.9189385, rtol=1e-4)
    np.testing.assert_allclose(slopes[beyond], -far[beyond], rtol=1e-3)
