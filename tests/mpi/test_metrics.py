"""AUC of unbalanced classes as objective, stopping rule and target, on shards of unequal size, under real mpirun."""

import json
import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from nnlo_opt import load_run
from tests.helpers import launcher
from tests.helpers.launcher import results_of

pytestmark = [pytest.mark.mpi, pytest.mark.keras]
MODEL = """
import keras
from nnlo_opt.space import Real

def get_model(rate=0.1):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
    metrics = ["accuracy", keras.metrics.AUC(), Worst(), Seen(name="seen")]
    model.compile(keras.optimizers.SGD(rate), "binary_crossentropy", metrics=metrics)
    return model
get_model.parameter_range = [Real(0.1, 1.0, name="rate")]

@keras.saving.register_keras_serializable()
class Worst(keras.metrics.Metric):
    def __init__(self, name="worst"):
        super().__init__(name=name)
        self.error = self.add_variable((), "zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        error = keras.ops.max(keras.ops.abs(keras.ops.cast(y_true, "float32") - y_pred))
        self.error.assign(keras.ops.maximum(self.error, error))

    def result(self):
        return self.error.value

@keras.saving.register_keras_serializable()
class Seen(keras.metrics.Metric):
    def __init__(self, name):
        super().__init__(name=name)
        self.count = self.add_variable((), "zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.count.assign_add(keras.ops.sum(keras.ops.ones_like(y_pred)))

    def result(self):
        return self.count.value
"""
EVALUATE = """
import json, sys, keras, h5py
from model import Worst
model = keras.saving.load_model(sys.argv[1], compile=False)
model.compile(loss="binary_crossentropy", metrics=[keras.metrics.AUC(name="auc"), Worst()])
for name in ("val", "test"):
    with h5py.File(name + ".h5") as file:
        print(json.dumps(model.evaluate(file["features"][:], file["labels"][:], verbose=0, return_dict=True)))
"""


@pytest.fixture
def folder(tmp_path) -> Path:
    """Samples of which one in ten is of class 1; those come last in the validation, so that a shard has none."""
    (tmp_path / "model.py").write_text(MODEL)
    rng = np.random.default_rng(0)
    for name, n in (("train", 600), ("val", 301), ("test", 150)):
        x = rng.normal(size=(n, 4)).astype(np.float32)
        y = (x[:, 0] + 0.5 * rng.normal(size=n) > 1.4).astype(np.float32)
        order = np.argsort(y, kind="stable")
        with h5py.File(tmp_path / f"{name}.h5", "w") as file:
            file["features"], file["labels"] = x[order], y[order, None]
        (tmp_path / f"{name}.list").write_text(f"{name}.h5\n")
    return tmp_path


def evaluated(folder: Path, model: Path) -> list[dict[str, float]]:
    """What Keras's own `evaluate` returns for the validation and the test samples."""
    command = [sys.executable, "-c", EVALUATE, str(model)]
    out = subprocess.run(command, cwd=folder, env=launcher.environment(), check=True, capture_output=True, text=True)
    return [json.loads(line) for line in out.stdout.splitlines()]


DATA = ["--train-data", "train.list", "--val-data", "val.list", "--test-data", "test.list"]


#: ranks and options
LAYOUTS = {
    "workers": (3, ["--sync-every", "2"]),
    "one rank": (1, []),
    "sub-masters": (5, ["--n-masters", "2"]),
    "worker groups": (5, ["--n-processes", "2"]),
}


@pytest.mark.proof
@pytest.mark.parametrize("layout", [*LAYOUTS])
def test_metrics_on_shards_are_those_of_evaluate_and_a_resumed_training_has_them_too(folder, layout):
    n_ranks, options = LAYOUTS[layout]
    command = ["TrainingDriver", "--model", "model.py", "--trial-name", "T", *DATA, "--batch", "32", *options]
    first = launcher.run(n_ranks, [*command, "--epochs", "4", "--target-metric", "val_auc,>,0.3"], folder).out
    assert "accuracy, metrics auc, worst, seen." in first
    assert "samples, and not in training, as its parts do not add up: worst." in first
    assert "val_auc is past its target of 0.3" in first
    again = launcher.run(n_ranks, [*command, "--epochs", "2", "--restore"], folder).out
    run = folder / "checkpoints/T"
    epochs = json.loads(max(run.glob("trials/*/fold0/history.json")).read_text())["epochs"]
    assert len(epochs) == 2
    validation, test = evaluated(folder, run / "best_model.keras")
    for name in ("auc", "worst", "loss"):
        assert epochs[-1][f"val_{name}"] == pytest.approx(validation[name], abs=1e-6)
    for epoch in epochs:
        # Workers that do not wait for each other may train some batches more.
        assert (600 <= epoch["seen"] < 800, epoch["val_seen"], "worst" in epoch) == (True, 301, False)
        assert 0.5 < epoch["auc"] < 1
    assert f"auc {test['auc']:.4f} worst {test['worst']:.4f} seen 150" in again


@pytest.mark.proof
def test_a_search_by_auc_has_it_in_folds_columns_and_curves_and_an_unknown_name_is_refused(folder):
    command = ["OptimizationDriver", "--model", "model.py", "--num-iterations", "2", *DATA[:2], "--epochs", "2"]
    command += ["--n-fold", "2", "--checkpoint", "S", "--block-size", "2", "--early-stopping", "val_auc,>,1"]
    refused = launcher.run(3, [*command, "--objective", "val_auk:max"], folder, code=2)
    assert "val_auc, val_worst, val_seen" in refused.err + refused.out
    assert not (folder / "checkpoints/S/journal.jsonl").exists()
    launcher.run(3, [*command, "--objective", "val_auc:max"], folder)
    for row in results_of(folder / "checkpoints/S"):
        assert row["state"] == "complete"
        assert float(row["figure_of_merit"]) == float(row["m:val_auc"]) > 0
        trial = load_run(folder / "checkpoints/S").trials[int(row["trial"])]
        assert np.mean([fold.metrics["val_auc"] for fold in trial.folds.values()]) == float(row["m:val_auc"])
    frame = load_run(folder / "checkpoints/S").to_dataframe("epochs")
    assert {"m:auc", "m:val_auc", "m:val_worst"} <= {*frame.columns}
    said = launcher.run(1, ["nnlo-opt", "ensemble", "checkpoints/S", "--size", "2"], folder).out
    assert "Figure of merit: val_auc, maximised." in said
    single, mean = (float(re.search(rf"^{row}.*? (0\.\d+)", said, re.MULTILINE)[1]) for row in ("best", "ensemble"))
    assert mean >= single > 0.5
