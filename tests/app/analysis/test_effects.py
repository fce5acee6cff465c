import numpy as np
import pytest

from nnlo_opt.app.analysis.effects import MIN_TRIALS, effects_of
from nnlo_opt.core.search.encoding import Encoding
from nnlo_opt.core.search.gaussian_process import Hyperparameters, Observations, Posterior
from nnlo_opt.core.search.targets import unwarp, warp
from nnlo_opt.core.space.conditions import When
from nnlo_opt.core.space.parameters import Categorical, Constant, Integer, Real
from nnlo_opt.core.space.space import Space


def measured(space, figure, n_trials, seed=0):
    rng = np.random.default_rng(seed)
    points = [space.sample(rng) for _ in range(n_trials)]
    return points, [figure(point) for point in points]


ADDITIVE = Space([Real(0.0, 1.0, name="strong"), Real(1e-4, 1.0, "log-uniform", "weak"), Integer(1, 9, name="none")])


def additive(point):
    """Variances 9/12 and 1/12: shares 0.9 and 0.1 of the whole."""
    return 10.0 + 3.0 * point["strong"] + np.log10(point["weak"]) / 4.0


@pytest.mark.parametrize("maximise", [False, True])
def test_importance_is_the_share_of_the_variance_and_its_band_holds_the_truth(maximise):
    found = effects_of(ADDITIVE, *measured(ADDITIVE, additive, 60), maximise=maximise)
    assert [effect.name for effect in found.effects] == ["strong", "weak", "none"]
    # The figures are compressed before the fit, which changes the shares a little.
    for effect, share in zip(found.effects, (0.9, 0.1, 0.0), strict=True):
        low, middle, high = effect.importance
        assert 0.0 <= low <= middle <= high <= 1.0
        assert middle == pytest.approx(share, abs=0.06)
    assert found.n_trials == 60
    assert found.explained > 0.95


@pytest.mark.parametrize("maximise", [False, True])
def test_dependence_is_the_mean_over_all_else_in_units_of_the_figure(maximise):
    strong = effects_of(ADDITIVE, *measured(ADDITIVE, additive, 60), maximise=maximise).effects[0]
    for value, (low, middle, high) in zip(strong.values, strong.dependence, strict=True):
        assert low <= middle <= high
        assert middle == pytest.approx(9.5 + 3.0 * value, abs=0.15)


def test_fewer_trials_leave_wider_bands():
    width = {}
    for n_trials in (6, 60):
        strong = effects_of(ADDITIVE, *measured(ADDITIVE, additive, n_trials)).effects[0]
        width[n_trials] = np.mean([high - low for low, _, high in strong.dependence])
    assert width[6] > 2 * width[60]


def test_noise_alone_makes_no_parameter_certain():
    rng = np.random.default_rng(1)
    found = effects_of(ADDITIVE, *measured(ADDITIVE, lambda point: rng.normal(), 30))
    assert found.explained < 0.2


CONDITIONAL = Space(
    [
        Categorical(["sgd", "adam", None], "optimizer"),
        Real(0.0, 1.0, name="momentum", condition=When("optimizer", "sgd")),
        Constant(7, "fixed"),
        Real(0.0, 1.0, name="rate"),
    ]
)


def test_a_parameter_with_a_condition_counts_only_if_a_point_has_it():
    def figure(point):
        return point["rate"] + 2.0 * point.get("momentum", 0.5)

    found = {e.name: e for e in effects_of(CONDITIONAL, *measured(CONDITIONAL, figure, 80)).effects}
    assert found.keys() == {"optimizer", "momentum", "rate"}
    # Of the variance, 1/12 is that of the rate, and a third of 4/12 that of the momentum.
    assert found["momentum"].importance[1] == pytest.approx(4 / 7, abs=0.15)
    assert found["optimizer"].values == ["sgd", "adam", None]
    slope = np.polyfit(found["momentum"].values, [middle for _, middle, _ in found["momentum"].dependence], 1)[0]
    assert slope == pytest.approx(2.0, abs=0.4)


def test_a_diverged_trial_does_not_hide_the_rest():
    points, figures = measured(ADDITIVE, additive, 60)
    figures[3] = 1e30
    found = effects_of(ADDITIVE, points, figures)
    assert found.effects[0].name == "strong"
    assert np.isfinite([band for effect in found.effects for band in effect.dependence]).all()


def test_equal_figures_and_huge_ones_have_finite_effects():
    points, _ = measured(ADDITIVE, additive, 8)
    for figures in ([1.0] * 8, [1e300 * n for n in range(8)], [0.0] * 7 + [1e-300]):
        found = effects_of(ADDITIVE, points, figures)
        assert np.isfinite([e.importance for e in found.effects]).all()


def test_too_few_trials_are_refused():
    with pytest.raises(ValueError, match=f"need {MIN_TRIALS}"):
        effects_of(ADDITIVE, *measured(ADDITIVE, additive, MIN_TRIALS - 1))


def test_an_observation_is_predicted_as_if_it_had_been_left_out():
    points, figures = measured(ADDITIVE, additive, 12)
    columns, values = Encoding(ADDITIVE).columns(points), np.array(figures) - np.mean(figures)
    hyperparameters = Hyperparameters(lengths=np.array([0.5, 0.7, 2.0]), scale=1.0, noise=0.01)

    def seeing(rows):
        groups = Encoding(ADDITIVE).groups
        return Posterior(
            hyperparameters, Observations(columns[rows], groups, values[rows], np.ones(len(rows))), mean=0.0
        )

    every = np.arange(12)
    predicted = seeing(every).left_out()[:, 0]
    for row in every:
        alone = seeing(np.delete(every, row)).predict(columns[[row]])[0][0, 0]
        assert predicted[row] == pytest.approx(alone, abs=1e-6)


def test_unwarp_is_the_inverse_of_warp():
    values = np.array([3.0, -1.0, 0.5, 1e6])
    np.testing.assert_allclose(unwarp(warp(values), values), values, rtol=1e-9)
