import json
import math
import re

import pytest

from nnlo_opt.app.run.options.space_checks import idle_options
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.training.options import SEARCHABLE, TrainingOptions, model_parameters
from nnlo_opt.core.training.stopping import EarlyStopping, TargetMetric
from nnlo_opt.core.update_rules.optimizers import make_optimizer
from nnlo_opt.space import Categorical, Integer, Real, Space
from tests.helpers.refusals import refusal


@pytest.mark.parametrize("name", ["batch", "epochs", "sync_every", "checkpoint_interval"])
@pytest.mark.parametrize("value", [0, -1, 1.5, 2.0, "3", True, None, math.nan])
def test_a_count_that_is_no_positive_whole_number_is_refused_with_option_and_value(name, value):
    refusal(TrainingOptions, **{name: value}, says=(spelled(name), f"Received: {value!r}"))


@pytest.mark.parametrize("value", [0, -0.1, math.nan, math.inf, "0.1", True])
def test_a_learning_rate_must_be_a_finite_number_above_zero(value):
    refusal(TrainingOptions, learning_rate=value, says=["--learning-rate"])


@pytest.mark.parametrize("value", [None, 1, 1e-9, 10.0])
def test_a_learning_rate_may_be_left_to_the_optimizer(value):
    assert TrainingOptions(learning_rate=value).learning_rate == value


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"optimizer": "sgdd"}, "--optimizer"),
        ({"optimizer": None}, "--optimizer"),
        ({"mode": "upstream"}, "--mode"),
        ({"synchronous": "yes"}, "--synchronous"),
        ({"synchronous": 1}, "--synchronous"),
        ({"shuffle": None}, "--shuffle"),
        ({"momentum_correction": 1}, "--momentum-correction"),
        ({"weight_decay": -0.1}, "--weight-decay"),
        ({"clip_norm": 0}, "--clip-norm"),
        ({"global_clip_norm": True}, "--global-clip-norm"),
        ({"clip_value": "1"}, "--clip-value"),
        ({"ema": 1.0}, "--ema"),
        ({"no_decay": "(bias"}, "--no-decay"),
        ({"no_decay": 3}, "--no-decay"),
    ],
)
def test_what_is_none_of_the_choices_is_refused_with_option_and_value(changes, option):
    (value,) = changes.values()
    refusal(TrainingOptions, **changes, says=(option, repr(value)))


@pytest.mark.parametrize(
    ("option", "changes"),
    [
        ("--synchronous", {"mode": "gem", "synchronous": True}),
        ("--overlap", {"mode": "allreduce", "overlap": True}),
        ("--overlap", {"synchronous": True, "overlap": True}),
        ("--staleness", {"synchronous": True, "staleness": "scale"}),
        ("--staleness", {"mode": "easgd", "staleness": "drop:2"}),
        ("--sync-every", {"mode": "allreduce", "sync_every": 2}),
        ("--elastic-momentum", {"mode": "easgd", "elastic_momentum": 0.5, "worker_optimizer": "adam"}),
    ],
)
def test_options_that_do_not_go_together_are_refused_by_name(option, changes):
    assert "mode" in refusal(TrainingOptions.of, changes, says=[f"`{option}`"]).partition("Received: ")[2]


@pytest.mark.parametrize(
    ("changes", "received"),
    [
        ({"mode": "easgd"}, "`--mode easgd`; use `--mode downpour`"),
        ({"synchronous": True}, "`--synchronous`; let each worker train at its own pace"),
        ({"staleness": "scale"}, "`--staleness scale`; choose one of the two"),
        ({"optimizer": "adam"}, "`--optimizer adam`; use `--optimizer sgd`"),
        ({"optimizer_params": {}}, "`--optimizer-params {}`; give them a momentum above 0"),
        ({"optimizer_params": {"momentum": 0.9, "nesterov": True}}, "without nesterov"),
    ],
    ids=str,
)
def test_a_momentum_is_corrected_for_staleness_in_asynchronous_sgd_only(changes, received):
    asked = {"optimizer": "sgd", "optimizer_params": {"momentum": 0.9}, "momentum_correction": True}
    assert TrainingOptions(**asked).momentum_correction
    refusal(TrainingOptions, **asked | changes, says=["`--momentum-correction` is for", received, "or leave"])


def test_a_gradient_is_clipped_in_one_way():
    refusal(TrainingOptions, clip_norm=1.0, clip_value=0.5, says=["`--clip-norm 1.0` and `--clip-value 0.5`"])


def test_the_mean_is_clipped_where_workers_wait_for_each_other_after_each_batch():
    assert TrainingOptions(synchronous=True).clips_mean
    assert not TrainingOptions(synchronous=True, sync_every=2).clips_mean
    assert not TrainingOptions().clips_mean
    assert not TrainingOptions(mode="easgd", synchronous=True).clips_mean


@pytest.mark.parametrize("option", [{"weight_decay": 0.1}, {"global_clip_norm": 1.0}])
def test_a_model_that_makes_its_own_steps_has_no_gradient_to_clip_and_decays_by_itself(option):
    (name,) = option
    refusal(TrainingOptions(**option).for_updates, says=[f"`{spelled(name)}` is for models", "trains itself"])
    assert TrainingOptions(ema=0.9).for_updates().ema == 0.9


def test_workers_overlap_unless_they_wait_for_each_other_or_are_told_not_to():
    assert TrainingOptions().overlaps
    assert not TrainingOptions(synchronous=True).overlaps
    assert not TrainingOptions(mode="allreduce").overlaps
    assert not TrainingOptions(overlap=False).overlaps
    assert TrainingOptions(mode="easgd", overlap=True).overlaps


def test_options_are_plain_data():
    options = TrainingOptions(optimizer_params={"momentum": 0.9}, learning_rate=0.1)
    assert TrainingOptions.of(json.loads(json.dumps(options.to_json()))) == options


# ---------------------------------------------------------------- points


def test_train_parameters_replace_only_their_own_options():
    options = TrainingOptions(batch=7, epochs=3, optimizer="sgd")
    changed = options.with_point({"train.batch": 32, "train.learning_rate": 0.5, "units": 8})
    assert (changed.batch, changed.learning_rate) == (32, 0.5)
    assert (changed.epochs, changed.optimizer) == (3, "sgd")
    assert options == TrainingOptions(batch=7, epochs=3, optimizer="sgd")


def test_a_point_without_train_parameters_changes_nothing():
    options = TrainingOptions(batch=7)
    assert options.with_point({}) == options.with_point({"units": 3, "training": 1}) == options


@pytest.mark.parametrize("name", ["train.learning-rate", "train.learning_rate"])
def test_an_option_is_named_with_dashes_or_underscores(name):
    assert TrainingOptions().with_point({name: 0.25}).learning_rate == 0.25


@pytest.mark.parametrize("option", SEARCHABLE)
def test_every_option_of_a_training_may_be_searched(option):
    value = TrainingOptions().to_json()[option]
    assert TrainingOptions().with_point({f"train.{option}": value}) == TrainingOptions()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("train.", "There are train.batch, "),
        ("train.speed", "There are train.batch, "),
        ("train.learn_rate", "Did you mean `train.learning_rate`?"),
        ("train.checkpoint_interval", "There are train.batch, "),
        ("train.optimizer_params", "Did you mean `train.optimizer`?"),
    ],
)
def test_a_train_parameter_that_is_no_option_is_refused_with_those_that_are(name, hint):
    refusal(TrainingOptions().with_point, {name: 1}, says=(repr(name), hint))


@pytest.mark.parametrize(("name", "value"), [("train.batch", 0), ("train.optimizer", "x"), ("train.epochs", 1.5)])
def test_a_value_that_its_option_does_not_take_is_refused(name, value):
    refusal(TrainingOptions().with_point, {name: value}, says=["--" + name.removeprefix("train.")])


def test_the_model_gets_what_does_not_begin_with_train():
    of_model = {"units": 3, "training": 5, "train": 6}
    assert model_parameters({"train.batch": 4, **of_model}) == of_model


def test_values_of_optimizer_params_can_be_searched_and_hold_a_learning_rate():
    options = TrainingOptions(optimizer="sgd", optimizer_params={"nesterov": True})
    made = options.with_point({"train.optimizer_params.momentum": 0.9, "train.worker_optimizer_params.lr": 0.1})
    assert made.optimizer_params == {"nesterov": True, "momentum": 0.9}
    assert make_optimizer("sgd", 1, 0.5, made.worker_optimizer_params).learning_rate == 0.1


def test_options_without_effect_are_named_unless_the_search_uses_them():
    given = TrainingOptions.of({"worker_optimizer": "adam", "elastic_force": 0.5, "gem_lr": 0.1})
    (line,) = idle_options(given, None)
    assert all(f"`--{name}`" in line for name in ("worker-optimizer", "elastic-force", "gem-lr"))
    space = Space([Categorical(["easgd", "gem"], name="train.mode")])
    assert not idle_options(given, space)
    assert not idle_options(TrainingOptions(), None)


@pytest.mark.parametrize(
    ("options", "own", "named"),
    [
        ({"worker_optimizer": "rmsprop"}, True, set()),
        ({"worker_optimizer": "rmsprop", "optimizer": "sgd"}, True, {"--optimizer"}),
        ({"mode": "easgd", "elastic_lr": 0.1}, True, {"--elastic-lr"}),
        ({"mode": "gem", "gem_lr": 0.1, "learning_rate": 0.1}, True, {"--gem-lr"}),
        ({"elastic_lr": 0.1, "gem_lr": 0.1}, True, {"--elastic-lr", "--gem-lr"}),
        ({"mode": "easgd", "worker_optimizer": "sgd", "optimizer_params": {"rho": 1}}, False, {"--optimizer-params"}),
        ({"mode": "easgd", "optimizer": "sgd", "learning_rate": 0.1}, False, set()),
        ({"mode": "gem", "optimizer": "sgd", "learning_rate": 0.1}, False, {"--optimizer", "--learning-rate"}),
        ({"mode": "easgd", "elastic_momentum": 0.9, "optimizer": "sgd"}, False, {"--optimizer"}),
        ({"mode": "easgd", "elastic_lr": 0.1, "learning_rate": 0.2}, False, {"--learning-rate"}),
        ({"optimizer_params": {"lr": 0.1}, "learning_rate": 0.2}, False, {"--learning-rate"}),
        ({"mode": "allreduce", "optimizer": "sgd", "learning_rate": 0.2}, False, set()),
        ({"mode": "gem", "weight_decay": 0.1, "clip_norm": 1.0}, False, {"--weight-decay"}),
        ({"mode": "easgd", "weight_decay": 0.1, "no_decay": "bias"}, False, set()),
        ({"optimizer": "adamw", "no_decay": "bias"}, False, set()),
        ({"no_decay": "bias"}, False, {"--no-decay"}),
        ({"optimizer": "sgd", "learning_rate": 0.2, "synchronous": True, "sync_every": 3}, False, set()),
    ],
)
def test_options_without_effect_depend_on_the_rank_that_makes_the_steps(options, own, named):
    line = "".join(idle_options(TrainingOptions.of(options), None, own=own))
    assert set(re.findall("`(.+?)`", re.sub(r"\(.*?\)", "", line))) == named


@pytest.mark.parametrize(
    ("options", "own", "optimizer"),
    [
        ({}, False, "adam"),
        ({"worker_optimizer": "sgd", "sync_every": 2}, False, "adam"),
        ({"mode": "easgd"}, False, "adam"),
        ({"mode": "easgd", "worker_optimizer": "sgd"}, False, "sgd"),
        ({"mode": "easgd", "elastic_momentum": 0.9}, False, ""),
        ({"mode": "allreduce", "optimizer": "rmsprop"}, False, "rmsprop"),
        ({"mode": "gem"}, False, ""),
        ({"mode": "gem"}, True, "adam"),
        ({"worker_optimizer": "sgd"}, True, "sgd"),
    ],
)
def test_the_optimizer_that_makes_the_steps_is_that_of_the_rank_that_makes_them(options, own, optimizer):
    assert TrainingOptions.of(options).steps_by(own=own) == optimizer


def test_an_option_of_steps_that_a_search_may_turn_on_is_not_called_idle():
    given = TrainingOptions.of({"mode": "easgd", "elastic_momentum": 0.9, "optimizer": "sgd"})
    assert idle_options(given, Space([Integer(1, 3, name="train.epochs")]))
    assert not idle_options(given, Space([Real(0, 0.9, name="train.elastic_momentum")]))


def test_rules_that_end_a_training_are_read_from_its_options():
    options = TrainingOptions(early_stopping="val_loss,~<,3", target_metric="val_acc,>,0.9")
    assert options.stopping == EarlyStopping(metric="val_loss", better="<", patience=3, smoothed=True)
    assert options.target == TargetMetric(metric="val_acc", side=">", value=0.9)
    assert TrainingOptions().stopping is TrainingOptions().target is None
