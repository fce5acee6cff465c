"""Metrics of compiled models and of `get_metrics`, against Keras's own `evaluate`."""

import numpy as np
import pytest

from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.core.models.adapter import figures_over
from nnlo_opt.core.training.history import Metrics
from nnlo_opt.engine.models.keras import framework
from nnlo_opt.engine.models.keras.metrics import metrics_of
from nnlo_opt.engine.models.losses import Labels, LossTerm, make_terms
from nnlo_opt.engine.models.metrics import merging
from tests.helpers.adapters import keras
from tests.helpers.refusals import refusal

pytestmark = pytest.mark.keras
BINARY = (LossTerm("out", "binary_crossentropy", accuracy="binary"),)
TWO = (BINARY[0], LossTerm("energy", "mean_squared_error", weight=3.0))


def worst():
    """Largest error: its states do not add up."""

    class Worst(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="worst")
            self.error = self.add_variable((), "zeros")

        def update_state(self, y_true, y_pred, sample_weight=None):
            errors = keras.ops.abs(keras.ops.cast(y_true, "float32") - y_pred)
            self.error.assign(keras.ops.maximum(self.error, keras.ops.max(errors)))

        def result(self):
            # A variable, as in Keras's own example; with JAX, Keras itself cannot take one.
            return self.error if keras.backend.backend() != "jax" else keras.ops.convert_to_tensor(self.error)

    return Worst()


def within(y_true, y_pred):
    return keras.ops.cast(keras.ops.abs(y_true - y_pred) < 0.25, "float32")


def many():
    own = [within, worst(), keras.metrics.BinaryAccuracy(threshold=0.7)]
    metrics = keras.metrics
    counts = ["AUC", metrics.AUC(curve="PR", name="pr"), metrics.Precision(name="p"), metrics.Recall(0.3, name="r")]
    return [*counts, "mae", metrics.F1Score(threshold=0.4), metrics.R2Score(), *own]


def samples(n=301, seed=0):
    """Samples of which few are of class 1; those come last."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 4)).astype(np.float32)
    y = (x[:, 0] + 0.3 * rng.normal(size=n) > 1.2).astype(np.float32)
    order = np.argsort(y, kind="stable")
    return x[order], y[order]


def network(**arguments):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
    model.compile(loss="binary_crossentropy", **arguments)
    return model


def batches_of(x, y, edges):
    parts = zip([0, *edges], [*edges, len(y)], strict=True)
    return [(x[one:other], y[one:other]) for one, other in parts if other > one]


def test_metrics_on_unequal_shards_are_those_of_all_samples():
    """Two shards have samples of one class alone, one of them a single one."""
    x, y = samples()
    assert len(set(y[:150])) == 1
    model = network(metrics=many())
    theirs = model.evaluate(x, y[:, None], batch_size=64, verbose=0, return_dict=True)
    asked = metrics_of(many(), BINARY)
    found = merging(framework.adapter(model, BINARY, metrics=asked.metrics, merging=None), x[::3], y[::3])
    assert found == tuple(name for name in asked.names if name != "worst")
    adapter = framework.adapter(model, BINARY, metrics=asked.metrics, merging=found)
    total = Metrics()
    for shard in batches_of(x, y, [1, 150, 290]):
        of_shard = Metrics()
        for part in batches_of(*shard, [*range(32, len(shard[1]), 32)]):
            of_shard = of_shard.merge(adapter.evaluate(*part))
        total = total.merge(of_shard)
    states = {name: np.asarray(state).tolist() for name, state in total.states.items()}
    ours = adapter.finish(states, lambda: batches_of(x, y, [100, 200]))
    names = {"auc": "AUC", "binary_acc": "binary_accuracy"}
    expected = {name: float(np.squeeze(theirs[names.get(name, name)])) for name in asked.names}
    assert ours == pytest.approx(expected, abs=1e-6)
    assert len(ours) == len(many())
    assert figures_over(adapter, lambda: batches_of(x, y, [77])) == pytest.approx(total.means() | ours, abs=1e-6)


def test_training_and_states_do_not_mix():
    x, y = samples(40)
    adapter = framework.adapter(network(), BINARY, metrics=metrics_of(["AUC"], BINARY).metrics, merging=["auc"])
    gradient = np.empty(adapter.n_weights, np.float32)
    before = adapter.evaluate(x, y).states["auc"]
    np.testing.assert_array_equal(adapter.gradient(x, y, gradient).states["auc"], before)
    np.testing.assert_array_equal(adapter.evaluate(x, y).states["auc"], before)
    assert before.dtype == np.float64
    adapter = framework.adapter(network(), BINARY, metrics=metrics_of([worst()], BINARY).metrics, merging=[])
    assert adapter.gradient(x, y, gradient).states == {}


def test_outputs_are_measured_as_by_evaluate():
    x, y = samples()
    model = network(metrics=many())
    theirs = model.evaluate(x, y[:, None], batch_size=len(x), verbose=0, return_dict=True)
    adapter = framework.adapter(model, BINARY, metrics=metrics_of(many(), BINARY).metrics, merging=())
    ours = adapter.measure_others(adapter.predict(x), y)
    names = {"auc": "AUC", "binary_acc": "binary_accuracy"}
    assert ours == pytest.approx({name: float(np.squeeze(theirs[names.get(name, name)])) for name in ours}, abs=1e-6)
    assert len(ours) == len(many())


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (lambda m: ["accuracy", "binary_accuracy", m.BinaryAccuracy()], ()),
        (lambda m: ["AUC", m.AUC(), m.AUC()], ("auc", "auc_1", "auc_2")),
        (lambda m: [m.AUC(name="mine_2")], ("mine_2",)),
        (lambda m: [m.TopKCategoricalAccuracy(3)], ("top_k_categorical_acc",)),
        (lambda m: {"out": [["mse"]]}, ("mse",)),
        (lambda m: {"mine": "mse", "other": m.AUC(), "acc": "accuracy"}, ("mine", "other")),
        (lambda m: ["categorical_accuracy"], ("categorical_acc",)),
    ],
)
def test_names_are_those_of_a_new_process_and_accuracy_stays_acc(asked, names):
    for _ in range(2):
        assert metrics_of(asked(keras.metrics), BINARY).names == names


def test_weighted_metrics_count_samples_by_their_weights_accuracy_too():
    asked = ["accuracy", "mae"], ["accuracy", "mae", "recall"]
    model = network(metrics=asked[0], weighted_metrics=asked[1])
    x, y = samples()
    weights = np.random.default_rng(1).uniform(0, 3, len(y)).astype(np.float32)
    theirs = model.evaluate(x, y[:, None], 301, sample_weight=weights, verbose=0, return_dict=True)
    found = metrics_of(asked[0], BINARY, asked[1])
    assert found.names == ("mae", "weighted_acc", "weighted_mae", "recall")
    adapter = framework.adapter(model, BINARY, metrics=found.metrics, merging=None)
    total = adapter.gradient(x, y, np.empty(adapter.n_weights, np.float32), weights)
    ours = adapter.finish({name: np.asarray(state).tolist() for name, state in total.states.items()}, lambda: [])
    names = {"weighted_acc": "weighted_accuracy"}
    assert ours == pytest.approx({name: theirs[names.get(name, name)] for name in found.names}, abs=1e-6)
    (weighted,) = metrics_of(None, TWO, {"out": ["accuracy"]}).metrics
    assert (weighted.name, weighted.output, weighted.is_weighted) == ("out_weighted_acc", 0, True)


def test_metrics_of_two_outputs_have_the_names_of_their_outputs():
    for request in (
        {"out": ["AUC", "accuracy"], "energy": keras.metrics.AUC()},
        [["AUC", "accuracy"], [keras.metrics.AUC()]],
    ):
        asked = metrics_of(request, TWO, {"energy": ["mae"]})
        assert [(metric.name, metric.output) for metric in asked.metrics] == [
            ("out_auc", 0),
            ("energy_auc", 1),
            ("energy_mae", 1),
        ]
        assert asked.counted == ("accuracy",)
    assert metrics_of({"energy": ["accuracy"]}, TWO).unfit == ("accuracy",)
    refusal(metrics_of, ["AUC", "mae", "mse"], TWO, says=["a list with an entry for each output: out, energy"])
    refusal(metrics_of, {"enrgy": "mae"}, TWO, says=["Received: enrgy."])


def test_two_metrics_of_a_kind_on_two_outputs_and_weights_of_losses_count_as_in_evaluate():
    inputs = keras.Input((4,))
    layers = keras.layers
    outputs = {
        "out": layers.Dense(1, activation="sigmoid", name="out")(inputs),
        "energy": layers.Dense(1, activation="sigmoid", name="energy")(inputs),
    }
    model = keras.Model(inputs, outputs)
    losses = {"out": "binary_crossentropy", "energy": "mse"}
    metrics = {"out": [keras.metrics.AUC(name="auc")], "energy": [keras.metrics.AUC(name="auc"), "mae"]}
    model.compile(loss=losses, loss_weights={"out": 1.0, "energy": 3.0}, metrics=metrics)
    x, y = samples()
    ys = {"out": y[:, None], "energy": y[::-1, None].copy()}
    theirs = model.evaluate(x, ys, verbose=0, return_dict=True, batch_size=301)
    described = framework.describe_outputs(model, (4,))
    names = [output.name for output in described]
    own = framework.compiled_of(model)
    labels = [Labels((1,), "float32") for _ in names]
    terms, _ = make_terms(own.loss, own.loss_weights, described, labels, framework.RULES)
    adapter = framework.adapter(model, terms, metrics=metrics_of(own.metrics, terms).metrics, merging=None)
    ours = figures_over(
        adapter, lambda: [(x[rows], [ys[n][rows] for n in names]) for rows in np.split(range(301), [9])]
    )
    for name in ("loss", "out_auc", "energy_auc", "energy_mae", "out_loss", "energy_loss"):
        assert ours[name] == pytest.approx(theirs[name], rel=1e-6), name


def test_masked_steps_count_as_in_evaluate():
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(24, 5, 2)).astype(np.float32)
    for row, n in zip(x, range(24), strict=True):
        row[1 + n % 5 :] = 0
    y = x.sum(axis=-1, keepdims=True) > 0
    layers = [keras.Input((5, 2)), keras.layers.Masking(), keras.layers.Dense(1, activation="sigmoid")]
    model = keras.Sequential(layers)
    model.compile(loss="bce", metrics=["mae", within, "AUC"])
    theirs = model.evaluate(x, y.astype(np.float32), verbose=0, return_dict=True, batch_size=24)
    terms = (LossTerm("out", "binary_crossentropy", accuracy="binary"),)
    adapter = framework.adapter(model, terms, metrics=metrics_of(["mae", within, "AUC"], terms).metrics, merging=None)
    ours = figures_over(adapter, lambda: batches_of(x, y.astype(np.float32), [7]))
    assert (ours["mae"], ours["within"], ours["auc"]) == pytest.approx(
        (theirs["mae"], theirs["within"], theirs["AUC"]), abs=1e-6
    )


@pytest.mark.parametrize(
    ("metric", "said"),
    [(lambda: "auk", "'auk'"), (lambda: 3, "Received: 3"), (lambda: keras.metrics.Mean(name="loss"), "Received: loss")],
)
def test_what_is_no_metric_or_has_a_name_that_is_taken_is_refused(metric, said):
    refusal(metrics_of, [metric()], BINARY, says=[said])


def test_a_metric_must_be_a_number_and_keep_its_state_in_variables():
    x, y = samples(20)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, activation="softmax")])
    terms = (LossTerm("out", "categorical_crossentropy", accuracy="categorical"),)
    y = np.stack([1 - y, y], axis=1)
    adapter = framework.adapter(model, terms, metrics=metrics_of([keras.metrics.F1Score()], terms).metrics)
    with pytest.raises(TrialError, match=r"f1_score has shape \(2,\) \(many metrics take `average='macro'`\)"):
        figures_over(adapter, lambda: [(x, y)])
    kind = type("Empty", (keras.metrics.Metric,), {"update_state": lambda *_: None, "result": lambda self: 1.0})
    adapter = framework.adapter(model, terms, metrics=metrics_of([kind(name="empty")], terms).metrics)
    with pytest.raises(TrialError, match="empty has no variables"):
        adapter.evaluate(x, y)
