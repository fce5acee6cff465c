import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.training.schedules import LearningRates, LearningRateSchedule
from tests.helpers.refusals import refusal

TEXTS = ["constant", "cosine", "one-cycle", "linear", "exponential:0.9", "step:2:0.5"]


def factors(text, at, epochs, warmup=0.0):
    schedule = LearningRateSchedule.parse(text, warmup)
    return [schedule.factor(p, epochs) for p in at]


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("constant", [0, 3.3, 10], [1, 1, 1]),
        ("linear", [0, 2.5, 5, 10], [1, 0.75, 0.5, 0]),
        ("cosine", [0, 10 / 3, 5, 20 / 3, 10], [1, 0.75, 0.5, 0.25, 0]),
        ("one-cycle", [0, 1.5, 3, 6.5, 10], [0.04, 0.52, 1, 0.500002, 4e-6]),
        ("exponential:0.5", [0, 1, 2, 2.5], [1, 0.5, 0.25, 0.5**2.5]),
        ("step:3:0.1", [0, 2.999, 3, 5.9, 6, 9.5], [1, 1, 0.1, 0.1, 0.01, 0.001]),
        ("step:0.1:0.5", [0.1 + 0.2], [0.125]),
        (" step : 30 : 0.1 ", [0], [1]),
    ],
)
def test_factors_without_a_warm_up_follow_their_formulas(text, at, expected):
    assert factors(text, at, epochs=10) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("constant", [0, 0.5, 1, 2, 9], [0, 0.25, 0.5, 1, 1]),
        ("linear", [1, 2, 6, 10], [0.5, 1, 0.5, 0]),
        ("cosine", [1, 2, 6, 10], [0.5, 1, 0.5, 0]),
        ("one-cycle", [0, 1, 2, 6, 10], [0.04, 0.52, 1, 0.500002, 4e-6]),
        ("exponential:0.5", [1, 2, 3], [0.5, 1, 0.5]),
        ("step:5:0.1", [1, 2, 4.9, 5], [0.5, 1, 1, 0.1]),
        ("step:1:0.5", [0.5, 1, 2], [0.25, 0.25, 0.25]),
    ],
)
def test_a_warm_up_leads_from_0_to_the_full_rate_where_the_decay_begins(text, at, expected):
    assert factors(text, at, epochs=10, warmup=2) == pytest.approx(expected)


def test_a_warm_up_may_be_a_fraction_of_an_epoch_and_may_fill_the_training():
    assert factors("constant", [0.125, 0.25, 1], epochs=1, warmup=0.25) == [0.5, 1, 1]
    assert factors("cosine", [0.5, 1], epochs=1, warmup=1) == [0.5, 1]


def test_one_cycle_is_torchs():
    torch = pytest.importorskip("torch")
    n_steps = 2000
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    theirs, rates = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=n_steps), []
    for _ in range(n_steps):
        rates.append(theirs.get_last_lr()[0])
        optimizer.step()
        theirs.step()
    # Theirs is of the beginning of each step, the last one at the end.
    ours = factors("one-cycle", [step * 20 / (n_steps - 1) for step in range(n_steps)], epochs=20)
    assert ours == pytest.approx(rates, abs=2e-3)


def test_a_warm_up_may_be_a_share_of_the_training():
    assert factors("linear", [1, 2, 6, 10], 10, "20%") == factors("linear", [1, 2, 6, 10], 10, 2)
    assert factors("one-cycle", [1, 3, 9], 10, " 30 % ") == factors("one-cycle", [1, 3, 9], 10)
    assert factors("cosine", [4], 8, "100%") == [0.5]
    LearningRateSchedule.parse("cosine", "100%").check(1)
    assert LearningRateSchedule.parse("constant", "5%").changes


@given(st.sampled_from(TEXTS), st.floats(0, 5), st.integers(5, 50), st.floats(-1, 60))
def test_every_factor_is_between_0_and_1(text, warmup, epochs, at):
    assert 0 <= factors(text, [at], epochs, warmup)[0] <= 1


@given(st.sampled_from(TEXTS), st.floats(0, 5), st.integers(5, 50), st.floats(0, 60), st.floats(0, 60))
def test_after_the_warm_up_no_factor_grows(text, warmup, epochs, one, other):
    warmup = warmup or 0.3 * epochs * (text == "one-cycle")
    early, late = sorted((max(one, warmup), max(other, warmup)))
    first, second = factors(text, [early, late], epochs, warmup)
    assert second <= first + 1e-12


@given(st.sampled_from(TEXTS), st.floats(0.01, 5), st.integers(5, 50))
def test_progress_beyond_either_end_counts_as_the_end(text, warmup, epochs):
    assert factors(text, [epochs + 0.5], epochs, warmup) == factors(text, [epochs], epochs, warmup)
    assert factors(text, [-0.5], epochs, warmup) == factors(text, [0], epochs, warmup)


def test_neither_the_first_update_of_a_warm_up_nor_the_last_of_a_decay_is_lost():
    n_updates, batch = 20, 10
    schedule = LearningRateSchedule.parse("linear", 0.5)
    ends = [(i * batch, (i + 1) * batch) for i in range(n_updates)]
    rates = [schedule.factor_of_update(before, after, n_train=100, epochs=2) for before, after in ends]
    assert min(rates[0], rates[-1]) > 0
    assert rates[:5] == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.9])
    # The rates of an epoch add up to the area under the curve, whatever the size of the updates.
    assert math.fsum(rates) * batch / 100 == pytest.approx(0.5 / 2 + 1.5 / 2)


NO_SCHEDULES = (
    "cosin cosine:1 step step:3 step:3:0.1:1 step:0:0.1 step:-1:0.1 step:3:0 step:3:1.5 step:three:0.1 "
    "exponential exponential:0 exponential:nan exponential:1.01"
)


@pytest.mark.parametrize("text", ["", *NO_SCHEDULES.split(), None, 3])
def test_a_schedule_that_is_none_is_refused_with_what_was_received(text):
    rule = "`--lr-schedule` must be one of "
    said = refusal(LearningRateSchedule.parse, text, says=(rule, "step:EVERY:FACTOR", f"Received: {text!r}"))
    assert f"Did you mean `{text}`" not in said


@pytest.mark.parametrize("warmup", [-1, -0.5, math.nan, math.inf, "2", True, None, "-1%", "101%", "x%", "%", "nan%"])
def test_a_warm_up_that_is_none_is_refused_with_what_was_received(warmup):
    rule = "`--warmup-epochs` must be a finite number"
    refusal(LearningRateSchedule.parse, "constant", warmup, says=(rule, repr(warmup)))


def test_a_warm_up_longer_than_the_training_is_refused():
    LearningRateSchedule.parse("cosine", 3).check(3)
    refusal(LearningRateSchedule.parse("cosine", 2.5).check, 2, says=["at most `--epochs`, which is 2. Received: 2.5"])


def test_only_a_constant_rate_without_a_warm_up_changes_nothing():
    assert not LearningRateSchedule.parse().changes
    assert LearningRateSchedule.parse("constant", 1).changes
    assert LearningRateSchedule.parse("cosine").changes


def test_a_rate_that_callbacks_request_counts_without_a_schedule():
    rates = LearningRates(LearningRateSchedule(), n_train=10, epochs=3)
    assert not rates.vary
    rates.take_request(0.5)
    assert rates.vary
    assert rates.factor(0, 10) == 0.5
