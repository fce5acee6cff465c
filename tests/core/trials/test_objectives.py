import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.trials.objectives import Comparison, Objective, OutcomeConstraint, losses, pick
from tests.helpers.refusals import check_refused

LOSS, ACC, SIZE = Objective("val_loss"), Objective("val_acc", "max"), Objective("n_weights")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("val_loss:min", LOSS),
        ("val_acc:max", ACC),
        ("val_accuracy:max", ACC),
        (" n_weights : min ", SIZE),
        ("energy:val_loss:min", Objective("val_energy_loss")),
    ],
)
def test_an_objective_is_a_metric_and_a_direction(text, expected):
    assert Objective.parse(text) == expected
    assert Objective.parse(str(expected)) == expected


@pytest.mark.parametrize(
    "text", ["", "val_loss", "val_loss:", ":min", "val_loss:up", "val_loss:MIN", "a:b:c:min", "a::min"]
)
def test_anything_else_is_refused_with_an_example(text):
    sentence = check_refused(repr(text), Objective.parse, text)
    assert re.search("`--objective` must be .* such as val_loss:min .* Received: ", sentence)


def test_losses_are_minimised_in_the_order_of_the_objectives():
    values = {"val_acc": 0.9, "n_weights": 7.0, "val_loss": 0.5}
    assert losses((ACC, LOSS), values) == (-0.9, 0.5)
    assert pick((SIZE, ACC), values) == {"n_weights": 7.0, "val_acc": 0.9}
    with pytest.raises(KeyError, match="nope"):
        pick((Objective("nope"),), values)


def test_one_objective_is_the_figure_of_merit_and_has_no_name_of_its_own():
    assert Comparison().several == Comparison(objectives=(ACC,)).several == ()
    assert Comparison(objectives=(ACC, SIZE)).several == (ACC, SIZE)


@pytest.mark.parametrize(
    ("comparison", "words"),
    [
        ({"objectives": (LOSS, Objective("val_loss", "max"))}, ["`--objective`", "'val_loss' twice"]),
        ({"epoch": "worst"}, ["`--objective-epoch`", "'worst'"]),
        ({"objectives": (SIZE, LOSS), "epoch": "best"}, ["`--objective-epoch best`", "n_weights"]),
        ({"epoch": "best", "function": "f"}, ["`--objective-epoch best`", "figure_of_merit"]),
        ({"objectives": (LOSS,), "function": "f"}, ["`--figure-of-merit`", "figure_of_merit:min"]),
        *(
            ({"constraints": tuple(map(OutcomeConstraint.parse, bounds))}, ["`--outcome-constraint`", *bounds])
            for bounds in (["a<1", "a>1"], ["a<=1", "a>1"], ["a<1", "a<2"], ["a<1", "a<1"], ["a>=2", "a<=1"])
        ),
    ],
)
def test_what_does_not_go_together_is_refused(comparison, words):
    sentence = check_refused("Received: ", lambda: Comparison(**comparison))
    assert all(word in sentence for word in words)


def test_the_best_epoch_goes_with_whatever_every_epoch_has():
    assert Comparison(epoch="best").epoch == "best"
    assert Comparison(objectives=(LOSS, SIZE), epoch="best").epoch == "best"


@pytest.mark.parametrize(
    ("text", "written", "kept", "broken"),
    [
        ("n_weights<100000", "n_weights<100000", 99999.5, 100000.0),
        (" val_accuracy >= .5 ", "val_acc>=0.5", 0.5, 0.25),
        ("energy : val_loss<=-1e-3", "val_energy_loss<=-0.001", -0.001, 0.0),
        ("import os>0", "import os>0", 1.0, float("nan")),
    ],
)
def test_a_constraint_is_a_metric_and_its_bound(text, written, kept, broken):
    bound = OutcomeConstraint.parse(text)
    assert str(bound) == written
    assert (bound.allows(kept), bound.allows(broken)) == (True, False)
    assert bound.excess(kept) <= 0.0 < bound.excess(broken)
    assert Comparison(constraints=(bound, OutcomeConstraint.parse("other>0"))).needed[-1].name == "other"


@given(st.text() | st.from_regex(r"[a-z:]{1,3}[<>=]{1,2}[-+.0-9eE_ninfa]{1,5}", fullmatch=True))
def test_any_other_text_is_refused_and_what_is_taken_is_written_as_it_is_read(text):
    try:
        bound = OutcomeConstraint.parse(text)
    except ConfigurationError:
        check_refused(repr(text), OutcomeConstraint.parse, text)
    else:
        assert abs(bound.bound) < float("inf")
        assert OutcomeConstraint.parse(str(bound)) == bound


def test_bounds_of_both_sides_go_together():
    bounds = tuple(map(OutcomeConstraint.parse, ["a>=1", "a<=1", "b>0", "b<1"]))
    assert Comparison(constraints=bounds).constraints == bounds
