"""Metrics of torchmetrics on shards, against the same metrics on all samples at once."""

from itertools import pairwise

import numpy as np
import pytest

from nnlo_opt.core.models.adapter import figures_over
from nnlo_opt.core.training.history import Metrics
from nnlo_opt.engine.models.losses import LossTerm
from nnlo_opt.engine.models.metrics import merging
from nnlo_opt.engine.models.torch import framework
from tests.helpers.adapters import Late, torch
from tests.helpers.refusals import refusal

torchmetrics = Late("torchmetrics", framework)
pytestmark = pytest.mark.needs("torch", "torchmetrics")
BINARY = (LossTerm("output_0", "binary_crossentropy", accuracy="binary"),)
CLASSES = (LossTerm("output_0", "CrossEntropyLoss", accuracy="sparse_categorical"),)
NUMBERS = (LossTerm("output_0", "mean_squared_error"),)


def samples(n=301):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(n, 4)).astype(np.float32)
    score = x[:, 0] + 0.5 * rng.normal(size=n)
    order = np.argsort(score)
    return x[order], score[order].astype(np.float32)


def metrics(task, **more):
    kinds = (torchmetrics.AUROC, torchmetrics.F1Score, torchmetrics.Recall)
    own = [kind(task=task, **more, **({"thresholds": 50} if kind is torchmetrics.AUROC else {})) for kind in kinds]
    return [*own, torchmetrics.AUROC(task=task, **more)]


@pytest.mark.parametrize("kind", ["binary", "multiclass", "regression"])
def test_metrics_on_shards_are_those_of_all_samples(kind):
    torch.manual_seed(0)
    x, score = samples()
    model = torch.nn.Linear(4, 3 if kind == "multiclass" else 1)
    with torch.no_grad():
        outputs = model(torch.from_numpy(x))
    if kind == "binary":
        terms, y = BINARY, (score > 1).astype(np.float32)
        make, given = (lambda: metrics("binary")), (outputs[:, 0].sigmoid(), torch.from_numpy(y).long())
    elif kind == "multiclass":
        terms, y = CLASSES, np.digitize(score, [0.0, 1.5])
        make = lambda: [*metrics("multiclass", num_classes=3)]  # noqa: E731
        given = (outputs.softmax(1), torch.from_numpy(y))
    else:
        terms, y = NUMBERS, score
        make = lambda: [torchmetrics.MeanAbsoluteError(), torchmetrics.R2Score(), torchmetrics.PearsonCorrCoef()]  # noqa: E731
        given = (outputs[:, 0], torch.from_numpy(y))
    asked = framework.metrics_of(make(), terms)
    adapter = framework.adapter(model, terms, metrics=asked.metrics, merging=None)
    found = merging(adapter, x[::3], y[::3])
    assert found == asked.names[:-1]
    adapter = framework.adapter(model, terms, metrics=asked.metrics, merging=found)
    edges = [0, 1, 120, 290, 301]
    shards = [(x[a:b], y[a:b]) for a, b in pairwise(edges)]
    total = Metrics()
    for shard in shards:
        total = total.merge(adapter.evaluate(*shard))
    ours = adapter.finish(total.states, lambda: shards)
    expected = {name: float(metric(*given)) for name, metric in zip(asked.names, make(), strict=True)}
    assert ours == pytest.approx(expected, abs=1e-6)
    assert figures_over(adapter, lambda: shards) == pytest.approx(total.means() | expected, abs=1e-6)
    outputs = adapter.predict(x)
    assert adapter.measure_others(outputs, y) == pytest.approx(expected, abs=1e-6)
    trained, gradient = Metrics(), np.empty(adapter.n_weights, np.float32)
    for shard in shards:
        trained = trained.merge(adapter.gradient(*shard, gradient))
    assert adapter.finish(trained.states, tuple) == pytest.approx({n: expected[n] for n in found}, abs=1e-6)


def test_a_single_sample_that_is_normalised_counts_once():
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1))
    asked = framework.metrics_of(metrics("binary"), BINARY)
    adapter = framework.adapter(model, BINARY, metrics=asked.metrics, merging=asked.names)
    x, score = samples(1)
    states = adapter.gradient(x, (score > 0).astype(np.float32), np.empty(adapter.n_weights, np.float32)).states
    assert sum(states["binary_recall"]) == 1


def test_names_are_those_of_the_classes_and_what_is_of_another_kind_is_refused():
    assert framework.metrics_of(metrics("binary"), BINARY).names == (
        "binary_auroc",
        "binary_f1_score",
        "binary_recall",
        "binary_auroc_1",
    )
    assert framework.metrics_of([torchmetrics.Accuracy(task="binary")], BINARY).names == ("binary_acc",)
    refusal(framework.metrics_of, ["AUC"], BINARY, says=["one metric object of torchmetrics", "Received: 'AUC'"])
