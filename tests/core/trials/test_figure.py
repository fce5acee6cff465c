import math

import numpy as np
import pytest

from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.core.trials.figure import best_epoch, figure_name, figure_of_merit, figure_so_far, judged
from nnlo_opt.core.trials.objectives import Comparison, Objective


@pytest.mark.parametrize(
    ("metrics", "name", "figure"),
    [
        ({"loss": 3.0, "acc": 0.9, "val_loss": 2.0, "val_acc": 0.75}, "1 - val_acc", 0.25),
        ({"loss": 3.0, "val_loss": 2.0}, "val_loss", 2.0),
        ({"loss": 3.0, "acc": 0.9}, "loss", 3.0),
        ({"loss": 3.0}, "loss", 3.0),
    ],
)
def test_the_figure_is_the_error_rate_else_the_validation_loss_else_the_loss(metrics, name, figure):
    assert figure_name(metrics) == figure_name(tuple(metrics)) == name
    assert figure_of_merit(metrics) == figure


@pytest.mark.parametrize(("objective", "index"), [(Objective("loss"), 1), (Objective("loss", "max"), 0)])
def test_the_best_epoch_is_the_first_of_the_best(objective, index):
    assert best_epoch(objective, [{"loss": 3.0}, {"loss": 1.0}, {"loss": 1.0}, {"loss": 3.0}]) == index


def test_the_figure_of_merit_has_an_epoch_too():
    epochs = [{"val_acc": 0.5, "loss": 1.0}, {"val_acc": 0.9, "loss": 2.0}, {"val_acc": 0.8, "loss": 0.1}]
    assert best_epoch(Objective("figure_of_merit"), epochs) == 1


@pytest.mark.parametrize("value", [0.5, np.float32(0.5), np.array([0.5]), True])
def test_a_user_s_figure_is_one_number(value):
    assert judged(lambda fold: value, {}) == (1.0 if value is True else 0.5)


@pytest.mark.parametrize("value", [None, "good", "0.5", math.nan, math.inf, [1.0, 2.0], {"a": 1.0}])
def test_anything_else_fails_the_trial_and_is_shown(value):
    with pytest.raises(TrialError, match="must be a finite number; received: "):
        judged(lambda fold: value, {})


def test_what_a_user_s_figure_raises_comes_out():
    with pytest.raises(KeyError, match="val_auc"):
        judged(lambda fold: fold["metrics"]["val_auc"], {"metrics": {}})


LEARNED = [{"loss": 3.0, "val_acc": 0.5}, {"loss": 1.0, "val_acc": 0.75}, {"loss": 2.0, "val_acc": 0.25}]


@pytest.mark.parametrize(
    ("comparison", "expected"),
    [
        (Comparison(), 0.75),
        (Comparison(epoch="best"), 0.25),
        (Comparison(objectives=(Objective("loss"),)), 2.0),
        (Comparison(objectives=(Objective("loss"),), epoch="best"), 1.0),
        (Comparison(objectives=(Objective("val_acc", "max"),), epoch="best"), 0.75),
        (Comparison(objectives=(Objective("n_weights"),)), None),
        (Comparison(function="f.py:f"), None),
    ],
)
def test_epochs_show_what_the_whole_training_will_be_compared_by(comparison, expected):
    assert figure_so_far(comparison, LEARNED) == expected
