"""A search space set against the model and the training options, without either."""

from pathlib import Path

import numpy as np
import pytest

from nnlo_opt.app.commands.driver_options import driver_options
from nnlo_opt.app.run.options.space_checks import check_space, check_training
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.training.options import MODES, OPTIMIZERS, SEARCHABLE, TrainingOptions
from nnlo_opt.engine.loading.spaces import load_space
from nnlo_opt.engine.models.builders import TrialDefinition
from nnlo_opt.space import Categorical, Constant, Integer, Ordinal, Real, Space, When

ROOT = Path(__file__).parents[3]


def get_model(n_units=3, width=2):
    """Takes what the spaces below give."""


def needs_width(n_units, width):
    """Has no defaults."""


def takes_anything(**parameters):
    """Has no names of its own."""


def definition(function=get_model):
    return TrialDefinition("m", "model", Path("m.py"), {"get_model": function})


def refusal(*parameters, arguments=(), feasible=None, function=get_model):
    """The sentence with which a space of these parameters is refused; empty where it is not."""
    space = Space(parameters)
    if feasible is not None:
        space = Space(space.parameters, feasible)
    # Another process has the function.
    return refusal_of(Space.from_json(space.to_json()), definition(function), *arguments)


def refusal_of(space, definition, *arguments):
    try:
        check_space(space, definition, driver_options("OptimizationDriver", ["--model", "m.py", *arguments]))
    except ConfigurationError as error:
        return str(error)
    return ""


MODE = Categorical(list(MODES), name="train.mode")

#: one parameter for every training option, with values that go together
OF_EVERY_OPTION = Space(
    [
        MODE,
        Ordinal([32, 64], name="train.batch"),
        Integer(2, 4, name="train.epochs"),
        Categorical(list(OPTIMIZERS), name="train.optimizer"),
        Real(1e-4, 1e-1, "log-uniform", name="train.learning_rate", likely=1e-3),
        Real(0.0, 0.1, name="train.weight_decay"),
        Constant("bias", name="train.no_decay"),
        Real(0.1, 1.0, name="train.clip_norm", condition=When("train.mode", "easgd")),
        Real(0.1, 1.0, name="train.global_clip_norm", condition=When("train.mode", "allreduce")),
        Real(0.1, 1.0, name="train.clip_value", condition=When("train.mode", "gem")),
        Real(0.9, 0.99, name="train.ema"),
        Real(0, 1, step=0.5, name="train.warmup_epochs"),
        Categorical(["constant", "linear", "cosine", "exponential:0.9", "step:2:0.5"], name="train.lr_schedule"),
        Categorical([True, False], name="train.synchronous", condition=When("train.mode", "easgd")),
        Integer(1, 4, name="train.sync_every", condition=When("train.mode", "downpour", "easgd", "gem")),
        Categorical(["auto", "messages"], name="train.exchange"),
        Categorical([True, False], name="train.overlap", condition=When("train.mode", "gem")),
        Categorical(["none", "scale", "drop:3"], name="train.staleness", condition=When("train.mode", "downpour")),
        Constant(False, name="train.momentum_correction"),
        Categorical(["sgd", "adam"], name="train.worker_optimizer", condition=When("train.mode", "downpour")),
        Real(0.1, 1.0, name="train.elastic_force", condition=When("train.mode", "easgd")),
        Real(1e-3, 1e-1, "log-uniform", name="train.elastic_lr", condition=When("train.mode", "easgd")),
        Real(0.0, 0.9, name="train.elastic_momentum", condition=When("train.mode", "easgd")),
        Real(1e-3, 1e-1, "log-uniform", name="train.gem_lr", condition=When("train.mode", "gem")),
        Real(0.0, 0.9, name="train.gem_momentum", condition=When("train.mode", "gem")),
        Real(1.0, 3.0, name="train.gem_kappa", condition=When("train.mode", "gem")),
        Constant("mean_squared_error", name="train.loss"),
        Categorical(["val_loss,<,2", "val_loss,<,4"], name="train.early_stopping"),
        Categorical(["val_loss,<,0.1", "val_loss,<,0.2"], name="train.target_metric"),
        Categorical([True, False], name="train.shuffle"),
    ]
)


@pytest.mark.proof
def test_every_training_option_can_be_searched_conditionally_too():
    assert set(OF_EVERY_OPTION.names) == {f"train.{name}" for name in SEARCHABLE}
    assert not refusal(*OF_EVERY_OPTION.parameters)
    rng = np.random.default_rng(0)
    for _ in range(300):
        check_training(TrainingOptions().with_point(OF_EVERY_OPTION.sample(rng)))


@pytest.mark.parametrize("path", sorted((ROOT / "search_spaces").glob("*.py")), ids=lambda path: path.stem)
def test_spaces_of_the_project_are_sound(path):
    assert not refusal_of(load_space(str(path)), definition(takes_anything))


def test_values_are_checked_where_their_condition_holds():
    staleness = Categorical(["none", "scale"], name="train.staleness", condition=When("train.mode", "downpour"))
    assert not refusal(MODE, staleness, arguments=["--mode", "easgd"])
    anywhere = Categorical(["none", "scale"], name="train.staleness")
    assert "'scale' is not" in refusal(anywhere, arguments=["--mode", "easgd"])
    # Epochs make room for the warm-up, of which the command line has none.
    warmup = Real(0, 2, name="train.warmup_epochs")
    assert not refusal(warmup, Integer(3, 4, name="train.epochs"))
    assert "'train.warmup_epochs'" in refusal(warmup)


def test_a_constraint_may_keep_values_apart():
    period = Integer(1, 8, name="train.sync_every")
    assert not refusal(MODE, period, feasible=lambda p: p["train.mode"] != "allreduce" or p["train.sync_every"] == 1)
    assert "train.mode='allreduce', train.sync_every=8 does not" in refusal(MODE, period)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ([Integer(1, 3, name="n_unit")], "Received: 'n_unit'"),
        ([Integer(1, 3, name="train.bach")], "'train.bach'"),
        ([Integer(0, 3, name="train.batch")], "'train.batch' must be one that its option takes; 0 is not"),
        ([Categorical(["adam", "adamm"], name="train.optimizer")], "'adamm' is not"),
        ([MODE, Categorical(["sgd", "sdg"], name="train.optimizer")], "'sdg' is not"),
        ([MODE, Constant("drop:x", name="train.staleness")], "'drop:x' is not"),
        ([Categorical(["mse", "msq"], name="train.loss")], "'msq' is not"),
        (
            [MODE, Integer(1, 8, name="train.sync_every")],
            "train.mode='allreduce', train.sync_every=8 does not: `--sync-every` must be 1",
        ),
        (
            [MODE, Categorical([True, False], name="train.synchronous")],
            "train.mode='gem', train.synchronous=True does not: `--synchronous` must be left out",
        ),
        ([Integer(1, 5, name="train.epochs"), Real(0, 2, name="train.warmup_epochs")], "train.epochs=1"),
        (
            [
                MODE,
                Categorical(["none", "scale"], name="train.staleness", condition=When("train.mode", "easgd", "gem")),
            ],
            "'scale' is not: `--staleness`",
        ),
    ],
)
def test_what_cannot_be_trained_is_told(parameters, words):
    assert words in refusal(*parameters)
    assert "\n" not in refusal(*parameters)


def test_a_wrong_value_is_told_with_a_constraint_too():
    optimizer = Categorical(["sgd", "sdg"], name="train.optimizer")
    assert "'sdg' is not" in refusal(MODE, optimizer, feasible=lambda parameters: True)


def test_an_argument_without_a_default_must_be_in_every_point():
    units = Integer(1, 3, name="n_units")
    assert not refusal(units, Integer(1, 3, name="width"), function=needs_width)
    width = Integer(1, 3, name="width", condition=When("n_units", 2))
    assert not refusal(units, width)
    sentence = refusal(units, width, function=needs_width)
    assert "none for 'width', which is given only when n_units is 2. Add the" in sentence


def test_a_ring_is_checked_against_every_rule():
    assert "'allreduce' is not: `--n-processes` must be 1" in refusal(MODE, arguments=["--n-processes", "2"])
    assert not refusal(Categorical(["easgd", "gem"], name="train.mode"), arguments=["--n-processes", "2"])
