"""What `compile` says of real Keras models, and which of it holds."""

import json
import re
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.engine.models.builders import open_model
from nnlo_opt.engine.models.compiled import Choices, Compiled, outcome_of
from nnlo_opt.engine.models.keras import framework
from nnlo_opt.engine.models.keras.adapter import KerasAdapter
from nnlo_opt.engine.models.keras.metrics import metrics_of
from nnlo_opt.engine.models.losses import Labels, LossTerm, VariedLoss, make_terms
from nnlo_opt.engine.models.own_optimizer import Instead
from tests.helpers.adapters import keras
from tests.helpers.refusals import refusal

pytestmark = pytest.mark.keras
BINARY = (LossTerm("out", "binary_crossentropy", accuracy="binary"),)


def mlp(activation="sigmoid", n=1, kind=None):
    kind = kind or keras.Sequential
    keras.utils.set_random_seed(0)
    layers = [keras.Input((3,)), keras.layers.Dense(n, activation=activation)]
    return kind(layers)


def compiled(activation="sigmoid", n=1, **arguments):
    model = mlp(activation, n)
    model.compile(**arguments)
    return model


def outcome(model, terms=BINARY, searched=(), functions=(), **options):
    own = framework.compiled_of(model)
    training = TrainingOptions(**options, given=frozenset(options))
    training = training.with_steps(own.brings(training))
    asked = metrics_of(own.metrics, terms, own.weighted_metrics)
    return outcome_of(own, Choices(training=training, searched=searched, functions=functions), terms, asked)


def test_a_model_that_is_not_compiled_says_nothing():
    assert framework.compiled_of(mlp()) == Compiled()
    assert outcome(mlp()) == outcome_of(Compiled(), Choices(training=TrainingOptions()), BINARY)
    assert not any(vars_of(outcome(mlp())))


def vars_of(found):
    return found.replaced, found.taken, found.unused


@pytest.mark.parametrize(
    ("optimizer", "steps"),
    [
        (lambda o: o.SGD(0.5, momentum=0.9, nesterov=True), ("sgd", 0.5, {"momentum": 0.9, "nesterov": True})),
        (lambda o: o.Adam(), ("adam", 0.001, {})),
        (lambda o: o.AdamW(1e-4), ("adamw", 1e-4, {})),
        (lambda o: o.AdamW(weight_decay=0.1), ("adamw", 0.001, {"weight_decay": 0.1})),
        (lambda o: o.Nadam(beta_1=0.8), ("nadam", 0.001, {"beta_1": 0.8})),
        (lambda o: o.Adagrad(initial_accumulator_value=0.0), ("adagrad", 0.001, {"initial_accumulator_value": 0.0})),
        (lambda o: "lion", ("lion", 0.001, {})),
        (lambda o: o.RMSprop(0.01, rho=0.8, centered=True), ("rmsprop", 0.01, {"rho": 0.8, "centered": True})),
        (lambda o: o.Adadelta(1.0), ("adadelta", 1.0, {})),
        (lambda o: "sgd", ("sgd", 0.01, {})),
        (lambda o: o.SGD(o.schedules.PiecewiseConstantDecay([10], [0.2, 0.1])), ("sgd", 0.2, {})),
        (lambda o: o.LossScaleOptimizer(o.SGD(0.1)), ("sgd", 0.1, {})),
        (lambda o: o.AdamW(clipnorm=1.0), ("adamw", 0.001, {}, {"clip_norm": 1.0})),
        (lambda o: o.SGD(weight_decay=0.1, clipvalue=2), ("sgd", 0.01, {}, {"weight_decay": 0.1, "clip_value": 2})),
        (
            lambda o: o.Lion(global_clipnorm=3.0, use_ema=True),
            ("lion", 0.001, {}, {"global_clip_norm": 3.0, "ema": 0.99}),
        ),
        (lambda o: o.Adam(use_ema=True, ema_momentum=0.5), ("adam", 0.001, {}, {"ema": 0.5})),
        (lambda o: o.Adam(ema_momentum=0.5), ("adam", 0.001, {})),
    ],
)
def test_an_optimizer_that_options_have_makes_the_steps(optimizer, steps):
    own = framework.compiled_of(compiled(optimizer=optimizer(keras.optimizers)))
    name, rate, parameters, *beside = steps
    expected = {"optimizer": name, "learning_rate": rate, "optimizer_params": parameters}
    assert own.steps == expected | dict(*beside)


def test_variables_that_do_not_decay_are_named():
    optimizer = keras.optimizers.AdamW()
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    model = compiled(optimizer=optimizer)
    pattern = framework.compiled_of(model).steps["no_decay"]
    names = [variable.path for variable in model.trainable_variables]
    assert [bool(re.search(pattern, name)) for name in names] == [False, True]
    optimizer = keras.optimizers.SGD()
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    assert "no_decay" not in framework.compiled_of(compiled(optimizer=optimizer)).steps


def test_every_argument_that_does_not_hold_is_named():
    optimizer = keras.optimizers.AdamW(weight_decay=0.01, clipnorm=1.0, amsgrad=True, gradient_accumulation_steps=2)
    found = outcome(
        compiled(
            optimizer=optimizer,
            loss="binary_crossentropy",
            loss_weights=2.0,
            metrics=["AUC", "accuracy", keras.metrics.BinaryAccuracy(threshold=0.7)],
            weighted_metrics=["mae"],
            steps_per_execution=4,
        )
    )
    assert found.taken == (
        "Taken from `compile`: AdamW(learning_rate=0.001, weight_decay=0.01, clipnorm=1.0, "
        "gradient_accumulation_steps=2, amsgrad=True), loss binary_crossentropy, loss weights, accuracy, metrics auc, "
        "binary_acc, mae."
    )
    assert found.replaced == ""
    assert "steps_per_execution=4" in found.unused


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"optimizer": "sgd", "run_eagerly": True}, "run_eagerly=True"),
        ({"optimizer": "sgd", "metrics": ["accuracy"], "loss": "mse"}, "metrics accuracy (no output has classes)"),
    ],
)
def test_other_arguments_that_do_not_hold_are_named_too(arguments, said):
    terms = (LossTerm("out", "mean_squared_error"),) if "loss" in arguments else BINARY
    assert said in outcome(compiled(**arguments), terms).unused


def test_a_schedule_is_run_by_keras_unless_an_option_sets_the_rate_and_an_average_where_one_is_kept():
    rate = keras.optimizers.schedules.CosineDecay(0.1, 100, warmup_steps=10, warmup_target=0.2)
    model = compiled(optimizer=keras.optimizers.SGD(rate, use_ema=True, ema_overwrite_frequency=10))
    own = framework.compiled_of(model).own
    assert (own.schedule, own.n_scheduled, own.ema, own.differs_in_rate_only) == ("CosineDecay", 110, 0.99, True)
    found = outcome(model, mode="allreduce")
    words = "SGD(learning_rate=CosineDecay, use_ema=True, ema_overwrite_frequency=10)"
    assert found.taken == f"Taken from `compile`: {words}."
    assert found.unused == "Not taken from `compile`: ema_overwrite_frequency=10 of SGD."
    assert outcome(model, mode="easgd") == found
    given = outcome(model, learning_rate=0.5)
    assert given.taken == "Taken from `compile`: sgd (learning_rate=0.5, ema=0.99)."
    assert "`--learning-rate 0.5` for the learning rate of SGD(" in given.replaced
    assert "ema_overwrite_frequency=10 of SGD" in given.unused


OWN = {
    "no twin": lambda o: o.Ftrl(0.1),
    "an argument that the twin lacks": lambda o: o.Adam(amsgrad=True),
    "a schedule": lambda o: o.SGD(o.schedules.ExponentialDecay(0.1, 10, 0.9)),
}


@pytest.mark.parametrize("name", OWN)
def test_what_keras_has_to_run_is_refused_where_workers_do_not_take_whole_steps(name):
    own = framework.compiled_of(compiled(optimizer=OWN[name](keras.optimizers)))

    def check(n_workers, schedule="", **options):
        training = TrainingOptions.of({**options, "given": frozenset(options)})
        training.with_steps(own.brings(training)).check_own(n_workers, schedule)

    for options in ({"mode": "allreduce"}, {"mode": "easgd"}, {"optimizer": "adam"}):
        check(3, **options)
    check(1)
    for options in ({}, {"mode": "gem"}, {"mode": "easgd", "elastic_momentum": 0.9}):
        said = refusal(
            check, 3, **options, says=[own.own.words, "`--mode allreduce`, `--mode easgd`, or `--mode downpour`"]
        )
        assert said.count(". ") == 1
    refusal(check, 1, optimizer_params={"a": 1}, says=[f"`{spelled('optimizer_params')}`", own.own.words])
    refusal(check, 1, "Decay", lr_schedule="cosine", says=["`--lr-schedule` and Decay exclude each other"])
    check(1, lr_schedule="cosine", ema=0.9)


def test_an_option_replaces_the_clipping_of_an_optimizer_that_keras_runs():
    found = outcome(compiled(optimizer=keras.optimizers.Ftrl(0.1, clipnorm=1.0)), clip_value=0.5)
    assert "`--clip-value 0.5` for the clipping of Ftrl(" in found.replaced


def test_an_option_that_is_given_or_searched_replaces_what_compile_said_and_a_default_does_not():
    model = compiled(optimizer=keras.optimizers.SGD(0.5), loss="mse", loss_weights=[2.0])
    assert vars_of(outcome(model)) == (
        "",
        "Taken from `compile`: sgd (learning_rate=0.5), loss binary_crossentropy, loss weights.",
        "",
    )
    given = outcome(model, optimizer="adam", loss="mae")
    assert given.replaced == (
        "In place of what `compile` said: `--optimizer adam` for SGD(learning_rate=0.5); `--loss mae` for the loss "
        "mean_squared_error."
    )
    rate = outcome(model, learning_rate=0.25)
    assert "`--learning-rate 0.25` for the learning rate of SGD(learning_rate=0.5)" in rate.replaced
    assert "sgd (learning_rate=0.25)" in rate.taken
    decaying = compiled(optimizer=keras.optimizers.AdamW(weight_decay=0.1, clipnorm=1.0))
    given = outcome(decaying, weight_decay=0.2, clip_value=0.5)
    assert given.taken == "Taken from `compile`: adamw (learning_rate=0.001, weight_decay=0.2, clip_value=0.5)."
    assert "`--weight-decay 0.2` for the weight decay of AdamW(" in given.replaced
    assert "`--clip-value 0.5` for the clipping of AdamW(" in given.replaced
    assert "`train.clip_norm` for the clipping" in outcome(decaying, searched=["train.clip_norm"]).replaced
    searched = outcome(model, searched=["train.optimizer"], functions=["get_loss", "get_loss_weights"])
    assert "`train.optimizer` for SGD(learning_rate=0.5)" in searched.replaced
    assert "`get_loss` for the loss mean_squared_error" in searched.replaced
    assert "`get_loss_weights` for its loss weights" in searched.replaced
    assert "(the steps are those of gem)" in outcome(model, mode="gem").unused
    gem = TrainingOptions(mode="gem").with_steps(framework.compiled_of(decaying).steps)
    assert (gem.weight_decay, gem.clip_norm) == (None, None)
    averaged = compiled(optimizer=keras.optimizers.Adam(use_ema=True, ema_momentum=0.5))
    found = outcome(averaged, mode="gem")
    assert "Adam(" in found.unused
    assert found.taken == "Taken from `compile`: average of the weights (ema=0.5)."
    assert "`--ema 0.25` for the average of the weights of Adam(" in outcome(averaged, mode="gem", ema=0.25).replaced
    own = outcome(model, mode="easgd", worker_optimizer="adam")
    assert "`--worker-optimizer adam` for SGD(learning_rate=0.5)" in own.replaced


def test_a_search_says_that_the_values_are_those_of_one_point():
    own = framework.compiled_of(compiled(optimizer="sgd"))
    choices = Choices(training=TrainingOptions().with_steps(own.steps), varies=True)
    assert outcome_of(own, choices, BINARY).taken == (
        "Taken from `compile` of each trial, here at the middle of the search space: sgd (learning_rate=0.01)."
    )


def test_options_with_the_steps_of_a_model():
    steps = {"optimizer": "sgd", "learning_rate": 0.5, "optimizer_params": {"momentum": 0.9, "nesterov": True}}

    def parts(options):
        return options.optimizer, options.learning_rate, dict(options.optimizer_params)

    assert parts(TrainingOptions().with_steps(steps)) == ("sgd", 0.5, steps["optimizer_params"])
    searched = TrainingOptions().with_point({"train.learning_rate": 0.1, "train.optimizer_params.momentum": 0.5})
    assert parts(searched.with_steps(steps)) == ("sgd", 0.1, {"momentum": 0.5, "nesterov": True})
    assert parts(TrainingOptions().with_point({"train.optimizer": "adam"}).with_steps(steps)) == ("adam", None, {})
    assert parts(TrainingOptions(given=frozenset({"optimizer"})).with_steps(steps)) == ("adam", None, {})
    assert TrainingOptions().with_steps({}) == TrainingOptions()
    assert "given" not in TrainingOptions(given=frozenset({"optimizer"})).to_json()


# ---------------------------------------------------------------- losses


def test_objects_of_get_loss_are_read_as_those_of_compile_and_nothing_else_is():
    own = [lambda y, p: p, "mse", keras.losses.BinaryCrossentropy(from_logits=True)]
    function, name, read = framework.with_objects_read(own)
    assert (function, name) == (own[0], "mse")
    assert (read.name, read.text) == ("binary_crossentropy", "binary_crossentropy(from_logits=True)")
    assert framework.with_objects_read({"out": keras.losses.MeanSquaredError()}) == {"out": "mean_squared_error"}
    assert framework.with_objects_read(own[:2]) == own[:2]


def figures_here_and_there(loss, activation, y, metrics=()):
    """Loss and accuracy of the adapter, and of Keras's own `evaluate`."""
    n = 1 if y.ndim == 2 else 4
    model = compiled(activation, n, optimizer="sgd", loss=loss, metrics=[*metrics])
    x = np.random.default_rng(0).normal(size=(len(y), 3)).astype(np.float32)
    theirs = model.evaluate(x, y, batch_size=len(y), return_dict=True, verbose=0)
    outputs = framework.describe_outputs(model, (3,))
    request = framework.compiled_of(model).loss
    terms, _ = make_terms(request, None, outputs, [Labels(y.shape[1:], str(y.dtype))], framework.RULES)
    adapter = KerasAdapter(model, terms)
    return adapter.evaluate(x, y).means(), theirs


@pytest.mark.parametrize(
    ("loss", "activation", "accuracy"),
    [
        (lambda o: "bce", "sigmoid", True),
        (lambda o: o.BinaryCrossentropy(), "sigmoid", True),
        (lambda o: o.BinaryCrossentropy(from_logits=True, label_smoothing=0.1), None, True),
        (lambda o: o.Huber(delta=0.1), None, False),
        (lambda o: o.mean_squared_error, None, False),
        (lambda o: o.MeanSquaredError(reduction="sum"), None, False),
        (lambda o: lambda y, p: keras.ops.mean(keras.ops.abs(y - p) ** 3, axis=-1), None, False),
        (lambda o: "LogCosh", None, False),
    ],
)
def test_the_loss_of_compile_is_kerass_own(loss, activation, accuracy):
    y = np.random.default_rng(1).integers(2, size=(16, 1)).astype(np.float32)
    ours, theirs = figures_here_and_there(loss(keras.losses), activation, y, ["accuracy"] * accuracy)
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
    assert not accuracy or ours["acc"] == pytest.approx(theirs["accuracy"])


def test_classes_of_logits_are_counted():
    y = np.random.default_rng(1).integers(4, size=16)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    ours, theirs = figures_here_and_there(loss, None, y, ["accuracy"])
    assert (ours["loss"], ours["acc"]) == pytest.approx((theirs["loss"], theirs["accuracy"]), rel=1e-6)


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "sum", "mean_with_sample_weight"])
@pytest.mark.parametrize("is_masked", [False, True])
def test_every_reduction_of_a_batch_is_kerass_own_with_a_mask_or_weights(reduction, is_masked):
    x = np.random.default_rng(0).normal(size=(16, 5, 3)).astype(np.float32)
    x[:7, 2:], y = 0, x.sum(axis=2, keepdims=True) if is_masked else x[:, 0, :1]
    first = keras.layers.Masking() if is_masked else keras.layers.Flatten()
    model = keras.Sequential([keras.Input((5, 3)), first, keras.layers.Dense(1)])
    model.compile("sgd", keras.losses.MeanSquaredError(reduction=reduction))
    weights = None if is_masked else np.linspace(0, 3, 16, dtype=np.float32)
    theirs = model.evaluate(x, y, batch_size=16, sample_weight=weights, return_dict=True, verbose=0)
    compiled, labels = framework.compiled_of(model), [Labels(y.shape[1:], "float32")]
    terms, _ = make_terms(compiled.loss, None, framework.describe_outputs(model, (5, 3)), labels, framework.RULES)
    ours = KerasAdapter(model, terms).evaluate(x, y, weights).means()
    assert ours["loss"] == pytest.approx(theirs["loss"], rel=1e-6)
    assert any("batches of several workers" in text for text in compiled.unused) == (reduction != "sum_over_batch_size")


def test_losses_that_are_plain_have_the_name_of_the_option():
    losses = keras.losses
    for loss, request in (
        ("mse", "mean_squared_error"),
        (losses.MeanSquaredError(name="mine"), "mean_squared_error"),
        (losses.get("mae"), "mean_absolute_error"),
        ({"dense": "mse"}, {"dense": "mean_squared_error"}),
        (["mse"], ["mean_squared_error"]),
    ):
        assert framework.compiled_of(compiled(optimizer="sgd", loss=loss)).loss == request
    varied = framework.compiled_of(compiled(optimizer="sgd", loss=losses.Huber(delta=2))).loss
    assert isinstance(varied, VariedLoss)
    assert varied.text == "huber(delta=2)"


def test_losses_that_cannot_be_taken_are_refused():
    loss = keras.losses.MeanSquaredError(reduction=None)
    refusal(framework.compiled_of, compiled(optimizer="sgd", loss=loss), says=["MeanSquaredError with reduction="])
    refusal(framework.compiled_of, compiled(optimizer="sgd", loss=[None]), says=["a loss for every output"])


# ---------------------------------------------------------------- a training of one's own, files


@pytest.mark.parametrize("name", ["train_step", "test_step", "compute_metrics", "compute_loss", "fit"])
def test_a_method_of_training_that_nothing_would_call_is_refused_by_name(name):
    kind = type("Mine", (keras.Sequential,), {name: lambda self, *arguments, **more: None})
    refusal(framework.compiled_of, mlp(kind=kind), says=[f"Mine with its own `{name}`"])


def test_what_a_built_model_has_and_only_fit_applies_is_said():
    class Counting(keras.layers.Layer):
        def __init__(self):
            super().__init__(name="counting")
            self.seen = keras.metrics.Mean(name="seen")

        def call(self, x):
            self.seen.update_state(x)
            return x

    bound = keras.layers.Dense(2, kernel_constraint="max_norm", name="bound")
    model = keras.Sequential([keras.Input((3,)), bound, Counting()], name="net")
    model.compile("sgd", "mse", metrics=["mae"])
    of_weights, of_layers = framework.remarks_on(model)
    assert "have no effect: MaxNorm of net/bound/kernel. Leave the optimizer" in of_weights
    assert "not measured: seen of counting" in of_layers
    assert framework.remarks_on(compiled(optimizer="sgd", loss="mse", metrics=["mae"])) == []


def test_metrics_that_take_logits_for_probabilities_are_said():
    def said(loss, metrics, activation=None, n=1):
        model = compiled(activation, n, optimizer="sgd", loss=loss, metrics=metrics)
        label = Labels((1,), "int32") if n > 1 else Labels((1,), "float32", np.array([[0.0], [1.0]]))
        found, outputs = framework.compiled_of(model), framework.describe_outputs(model, (3,))
        terms, _ = make_terms(found.loss, None, outputs, [label], framework.RULES)
        return "".join(framework.remarks_on(model, terms, metrics_of(found.metrics, terms)))

    m, logits = keras.metrics, keras.losses.BinaryCrossentropy(from_logits=True)
    assert said(logits, ["AUC", m.Precision(), m.Recall(thresholds=0), "mae", m.PrecisionAtRecall(0.5, name="p")]) == (
        "The loss has from_logits=True, and some metrics take these logits for probabilities, as in `fit`: acc, auc, "
        "precision, p. Use BinaryAccuracy(threshold=0), AUC(from_logits=True), Precision(thresholds=0), a sigmoid as "
        "last layer."
    )
    sparse = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    assert said(sparse, ["accuracy", m.SparseTopKCategoricalAccuracy(2)], n=4) == ""
    assert "a softmax as last layer" in said(sparse, [m.SparseCategoricalCrossentropy(from_logits=True), "AUC"], n=4)
    assert said("binary_crossentropy", ["AUC", m.Precision()], "sigmoid") == ""


def test_constraints_are_applied_by_the_optimizer_of_keras():
    def bound():
        model = mlp()
        model.layers[0].kernel.constraint = keras.constraints.MaxNorm(0.1)
        model.compile(keras.optimizers.Adam(0.1), "mse")
        return model

    x, y = np.ones((4, 3), np.float32), np.ones((4, 1), np.float32)
    (theirs := bound()).train_on_batch(x, y)
    found = framework.compiled_of(ours := bound())
    assert found.brings(TrainingOptions()) == {"own": "Adam(learning_rate=0.1) with constraints"}
    assert framework.remarks_on(ours, is_own=True) == []
    adapter = KerasAdapter(ours, [LossTerm("out", "mean_squared_error")])
    weights, slope = np.empty((2, adapter.n_weights), np.float32)
    adapter.read_weights(weights)
    adapter.gradient(x, y, slope)
    adapter.stepping(found.own, Instead()).step(weights, slope)
    assert weights == pytest.approx(np.concatenate([v.numpy().ravel() for v in theirs.trainable_variables]), rel=1e-5)
    assert np.linalg.norm(weights[:3]) == pytest.approx(0.1, rel=1e-5)


def test_a_backend_that_a_module_has_set_too_late_is_said(monkeypatch):
    model = mlp()
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    (said,) = framework.remarks_on(model)
    assert "uses tensorflow: `--keras-backend jax` chooses it" in said


def test_fresh_weights_keep_what_layers_know_of_the_samples(tmp_path):
    scale, table = keras.layers.Normalization(), keras.layers.IntegerLookup(output_mode="one_hot")
    scale.adapt(np.array([[1.0], [5.0], [9.0]]))
    table.adapt(np.array([[3], [4], [4]]))
    inputs = [keras.Input((1,)), keras.Input((1,), dtype="int64")]
    known = keras.layers.Concatenate(name="known")([keras.Sequential([scale])(inputs[0]), table(inputs[1])])
    model = keras.Model(inputs, keras.layers.Dense(8)(known))
    model.save(path := tmp_path / "model.keras")
    fresh = framework.saved_model(path, fresh=True)
    x = [np.array([[5.0], [9.0]]), np.array([[3], [4]])]
    known = keras.Model(fresh.inputs, fresh.get_layer("known").output)(x)
    assert keras.ops.convert_to_numpy(known) == pytest.approx(np.array([[0, 0, 0, 1], [1.2247, 0, 1, 0]]), abs=1e-3)
    assert not np.array_equal(fresh.layers[-1].kernel.numpy(), model.layers[-1].kernel.numpy())


def test_other_methods_of_a_subclass_are_its_own_business():
    kind = type("Mine", (keras.Sequential,), {"predict_step": lambda self, data: None})
    assert framework.compiled_of(mlp(kind=kind)) == Compiled()


@pytest.mark.parametrize("fresh", [False, True])
def test_a_saved_model_counts_as_compiled(tmp_path, fresh):
    model = compiled(optimizer=keras.optimizers.SGD(0.5, clipvalue=1.0), loss="mse", metrics=["AUC"])
    model.save(tmp_path / "m.keras")
    own = framework.compiled_of(open_model(str(tmp_path / "m.keras"), fresh=fresh).build({}))
    assert replace(own, metrics=None) == replace(framework.compiled_of(model), metrics=None)
    assert [metric.name for metric in metrics_of(own.metrics, BINARY).metrics] == ["auc"]
    mlp().save(tmp_path / "plain.keras")
    assert framework.compiled_of(open_model(str(tmp_path / "plain.keras")).build({})) == Compiled()


@pytest.mark.filterwarnings("ignore:.*HDF5:UserWarning")
def test_what_an_older_file_says_is_named_as_not_read(tmp_path):
    compiled(optimizer="sgd", loss="mse").save(tmp_path / "m.h5")
    found = outcome(open_model(str(tmp_path / "m.h5")).build({}))
    assert (found.replaced, found.taken) == ("", "")
    assert found.unused.endswith("m.h5` (save the model as `.keras`).")


def test_what_a_file_cannot_say_without_code_is_said(tmp_path):
    model = compiled(optimizer="sgd", loss="mse")
    model.save(tmp_path / "m.keras")
    with zipfile.ZipFile(tmp_path / "m.keras") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    config = json.loads(parts["config.json"])
    config["compile_config"]["loss"] = {"module": "os", "class_name": "function", "config": "system"}
    parts["config.json"] = json.dumps(config).encode()
    with zipfile.ZipFile(tmp_path / "foreign.keras", "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    found = outcome(open_model(str(tmp_path / "foreign.keras")).build({}))
    assert found.unused.startswith("Not taken from `compile`: all settings in `")
    assert "it needs `os`" in found.unused
