import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.training.stopping import EarlyStopping, TargetMetric, canonical_metric, check_metric
from tests.helpers.refusals import refusal

values = st.lists(st.floats(-10, 10), min_size=1, max_size=30)


def rule(better="<", patience=2, *, smoothed=False):
    return EarlyStopping(metric="val_loss", better=better, patience=patience, smoothed=smoothed)


def first_stop(rule, values):
    """Epochs after which the rule ends the training, or None."""
    return next((n for n in range(1, len(values) + 1) if rule.reached(values[:n])), None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("val_loss,<,4", rule("<", 4)),
        ("val_loss,~<,4", rule("<", 4, smoothed=True)),
        (" val_loss , ~> , 1 ", rule(">", 1, smoothed=True)),
        ("val_accuracy,>,3", EarlyStopping(metric="val_acc", better=">", patience=3)),
        (
            "combined_model:val_loss,~<,2",
            EarlyStopping(metric="val_combined_model_loss", better="<", patience=2, smoothed=True),
        ),
        (" energy : loss , < , 2", EarlyStopping(metric="energy_loss", better="<", patience=2)),
    ],
)
def test_early_stopping_is_read_from_metric_side_patience(text, expected):
    assert EarlyStopping.parse(text) == expected == EarlyStopping.parse(str(expected))


NO_STOPPING = (
    "val_loss val_loss,< val_loss,<,0 val_loss,<,-1 val_loss,<,2.5 val_loss,=,2 ,<,2 val_loss,<,2,3 "
    "val_loss,<~,2 val_loss,~~<,2 val_loss,<,many"
)


@pytest.mark.parametrize("text", ["", *NO_STOPPING.split()])
def test_an_early_stopping_that_is_none_is_refused_with_what_was_received(text):
    refusal(EarlyStopping.parse, text, says=("--early-stopping", repr(text)))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("val_acc,>,0.97", TargetMetric(metric="val_acc", side=">", value=0.97)),
        (" loss , < , 1e-3 ", TargetMetric(metric="loss", side="<", value=1e-3)),
        ("accuracy,>,0.5", TargetMetric(metric="acc", side=">", value=0.5)),
        ("val_loss,<,-0.5", TargetMetric(metric="val_loss", side="<", value=-0.5)),
        ("val_loss,<,-1e-3", TargetMetric(metric="val_loss", side="<", value=-1e-3)),
        ("val_loss,<,.5", TargetMetric(metric="val_loss", side="<", value=0.5)),
        ("energy:val_accuracy,>,0.9", TargetMetric(metric="val_energy_acc", side=">", value=0.9)),
    ],
)
def test_a_target_is_read_from_metric_side_value(text, expected):
    assert TargetMetric.parse(text) == expected


NO_TARGETS = "val_acc val_acc,> val_acc,>,high val_acc,>,nan val_acc,>,inf val_acc,~>,0.5 ,>,0.5 val_acc,>,0.5,1"


@pytest.mark.parametrize("text", ["", *NO_TARGETS.split()])
def test_a_target_that_is_none_is_refused_with_what_was_received(text):
    refusal(TargetMetric.parse, text, says=("--target-metric", repr(text)))


def test_a_target_is_reached_past_its_value_not_at_it():
    below, above = TargetMetric(metric="m", side="<", value=0.5), TargetMetric(metric="m", side=">", value=0.5)
    assert [below.reached(v) for v in (0.4, 0.5, 0.6)] == [True, False, False]
    assert [above.reached(v) for v in (0.4, 0.5, 0.6)] == [False, False, True]


@pytest.mark.parametrize(
    ("stopping", "series", "n_epochs"),
    [
        (rule("<", 1), [3, 2, 2], 3),
        (rule("<", 2), [3, 2, 2, 1, 1, 1], 6),
        (rule("<", 2), [3, 2, 2.5, 2.5], 4),
        (rule("<", 3), [1, 2, 3, 4], 4),
        (rule("<", 2), [5, 4, 3, 2, 1], None),
        (rule(">", 2), [1, 3, 2, 2.5], 4),
        (rule(">", 2), [1, 2, 3, 4, 5], None),
        (rule("<", 2, smoothed=True), [4, 2, 3, 1], None),
        (rule("<", 2, smoothed=True), [4, 2, 3, 1, 3, 2.5], 6),
        (rule("<", 2, smoothed=True), [1, 1, 1, 1], 4),
        (rule(">", 1, smoothed=True), [1, 2, 2], 3),
    ],
)
def test_a_training_ends_after_patience_epochs_without_improvement(stopping, series, n_epochs):
    assert first_stop(stopping, series) == n_epochs


@given(values, st.integers(1, 5), st.booleans())
def test_no_rule_ends_a_training_before_it_can_compare(series, patience, smoothed):
    n_epochs = first_stop(rule("<", patience, smoothed=smoothed), series)
    assert n_epochs is None or n_epochs >= (2 * patience if smoothed else patience + 1)


@given(values, st.integers(1, 5), st.booleans())
def test_higher_is_better_is_lower_is_better_of_the_opposite(series, patience, smoothed):
    mirrored = [-value for value in series]
    lower, higher = rule("<", patience, smoothed=smoothed), rule(">", patience, smoothed=smoothed)
    assert lower.reached(series) == higher.reached(mirrored)
    assert lower.best_index(series) == higher.best_index(mirrored)


@given(values)
def test_the_best_epoch_is_the_first_among_equals_and_improves_on_all_before(series):
    best = rule("<").best_index(series)
    assert series[best] == min(series)
    assert all(series[best] < value for value in series[:best])


@given(values, st.integers(1, 5))
def test_a_plain_rule_stops_exactly_patience_epochs_after_the_best(series, patience):
    n_epochs = first_stop(rule("<", patience), series)
    if n_epochs is not None:
        assert rule("<").best_index(series[:n_epochs]) == n_epochs - 1 - patience


@pytest.mark.parametrize(
    ("name", "canonical"),
    [
        ("accuracy", "acc"),
        ("val_accuracy", "val_acc"),
        ("acc", "acc"),
        ("val_loss", "val_loss"),
        ("energy:loss", "energy_loss"),
        ("energy:val_loss", "val_energy_loss"),
        ("energy:accuracy", "energy_acc"),
        ("energy:val_accuracy", "val_energy_acc"),
        ("val_energy_accuracy", "val_energy_acc"),
        # An output may be called anything.
        ("accuracy:val_loss", "val_accuracy_loss"),
        ("val_accuracy_loss", "val_accuracy_loss"),
        ("val:val_loss", "val_val_loss"),
        ("inaccuracy", "inaccuracy"),
    ],
)
def test_metrics_have_one_name(name, canonical):
    assert canonical_metric(name) == canonical
    assert canonical_metric(canonical) == canonical


@pytest.mark.parametrize("name", [":val_loss", "energy:", "a:b:val_loss", ":", "energy:val_"])
def test_half_of_a_metric_of_a_model_is_refused_with_what_was_received(name):
    for parse, option in ((EarlyStopping.parse, "--early-stopping"), (TargetMetric.parse, "--target-metric")):
        refusal(parse, f"{name},<,2", says=(f"`{option}`", "energy:val_loss", repr(name)))


def test_a_metric_that_will_not_be_measured_is_refused_with_those_that_will():
    check_metric("val_loss", ["loss", "val_loss"], "--early-stopping")
    rule = "`--early-stopping` must name one of loss, val_loss"
    refusal(check_metric, "val_acc", ["loss", "val_loss"], "--early-stopping", says=(rule, "'val_acc'"))
