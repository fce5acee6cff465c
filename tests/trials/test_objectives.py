import pytest

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.trials.objectives import Comparison, Objective, losses, pick
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
    with pytest.raises(
        ConfigurationError, match=r"`--objective` must be .* such as val_loss:min .* Received: "
    ) as refusal:
        Objective.parse(text)
    assert repr(text) in str(refusal.value)


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
    ],
)
def test_what_does_not_go_together_is_refused(comparison, words):
    sentence = check_refused("Received: ", lambda: Comparison(**comparison))
    assert all(word in sentence for word in words)


def test_the_best_epoch_goes_with_whatever_every_epoch_has():
    assert Comparison(epoch="best").epoch == "best"
    assert Comparison(objectives=(LOSS, SIZE), epoch="best").epoch == "best"
