import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.trials.objectives import ParetoSet, dominates

#: few values, so that ties and equal trials are common
points = st.integers(1, 4).flatmap(
    lambda k: st.lists(st.tuples(*[st.integers(-3, 3).map(float)] * k), min_size=0, max_size=25)
)


def beats(a, b):
    """The definition, word by word."""
    nowhere_worse = not any(x > y for x, y in zip(a, b, strict=True))
    somewhere_better = any(x < y for x, y in zip(a, b, strict=True))
    return nowhere_worse and somewhere_better


def brute_force(losses):
    return {i for i, a in enumerate(losses) if not any(beats(b, a) for b in losses)}


@given(points)
def test_after_every_trial_it_is_what_no_other_trial_beats(losses):
    pareto = ParetoSet()
    for trial, own in enumerate(losses):
        belongs = pareto.add(trial, own)
        expected = brute_force(losses[: trial + 1])
        assert set(pareto.trials) == expected
        assert belongs == (trial in expected) == (trial in pareto)
        assert len(pareto) == len(expected)


@given(points, st.randoms(use_true_random=False))
def test_it_does_not_depend_on_the_order_of_the_trials(losses, random):
    order = list(range(len(losses)))
    random.shuffle(order)
    one, other = ParetoSet(), ParetoSet()
    for trial in range(len(losses)):
        one.add(trial, losses[trial])
    for trial in order:
        other.add(trial, losses[trial])
    assert one == other
    assert one.trials == other.trials


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=20))
def test_of_one_objective_it_is_the_best(values):
    pareto = ParetoSet()
    for trial, value in enumerate(values):
        pareto.add(trial, (value,))
    assert pareto.trials == [trial for trial, value in enumerate(values) if value == min(values)]


def test_it_is_listed_from_the_best_to_the_worst_in_the_first_objective():
    pareto = ParetoSet()
    for trial, own in enumerate([(3.0, 1.0), (1.0, 3.0), (2.0, 2.0), (2.0, 2.5)]):
        pareto.add(trial, own)
    assert pareto.trials == [1, 2, 0]


def test_a_trial_does_not_dominate_its_equal():
    assert not dominates((1.0, 2.0), (1.0, 2.0))
    assert dominates((1.0, 2.0), (1.0, 2.5))
    assert not dominates((1.0, 2.5), (2.0, 2.0))


@pytest.mark.parametrize("losses", [(float("nan"), 0.0), (0.0, float("inf")), (0.0,), (0.0, 1.0, 2.0)])
def test_losses_that_are_not_finite_or_of_another_number_are_refused_and_change_nothing(losses):
    pareto = ParetoSet()
    pareto.add(0, (1.0, 1.0))
    with pytest.raises(ValueError, match="Received"):
        pareto.add(1, losses)
    assert pareto.trials == [0]
