"""Callbacks for other frameworks: a training goes on in the epoch in which it was killed, or paused."""

import signal
from collections import Counter

import pytest

from tests.helpers import launcher

HEAD = """
import os
import signal
import sys

import nnlo_opt
import numpy as np

x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = (x @ np.array([1, -2, 3, 0.5], "float32"))[:, None]
began, finals = [], []


def in_batch(epoch):
    if "die" in sys.argv and epoch == 4:
        os.kill(os.getpid(), signal.SIGKILL)
"""

KERAS = """
import keras
from nnlo_opt.integrations.keras import TrialCallback


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 4

    def __getitem__(self, n):
        return x[16 * n : 16 * n + 16], y[16 * n : 16 * n + 16]


class Watch(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch + 1

    def on_train_batch_end(self, batch, logs=None):
        in_batch(self.epoch)


def objective(trial):
    keras.utils.set_random_seed(1)
    layers = keras.layers
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(8), layers.BatchNormalization(), layers.Dropout(0.2, seed=1), layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(trial.parameters["lr"]), "mse")
    callback = TrialCallback(trial, "val_loss")
    began.append(callback.epoch)
    model.fit(
        Batches(workers=1),
        validation_data=(x, y),
        epochs=6,
        initial_epoch=callback.epoch,
        verbose=0,
        shuffle=False,
        callbacks=[Watch(), callback],
    )
    finals.append([*model.get_weights(), *map(keras.ops.convert_to_numpy, model.optimizer.variables)])
    return callback.value
"""

TAIL = """
def search(name, **options):
    space = {"lr": nnlo_opt.Real(0.001, 0.1, "log-uniform")}
    options |= {"hyper_opt": "random", "checkpoint": name, "catch": False, "opt_restore": True}
    return nnlo_opt.optimize(objective, space, **options)


result = search("killed", num_iterations=1)
whole = search("whole", num_iterations=1)
assert result.figure_of_merit == whole.figure_of_merit
assert began == [3, 0], began
for one, other in zip(*finals, strict=True):
    np.testing.assert_array_equal(one, other)
search("paused", num_iterations=4, pruner="asha", pruner_max_epochs=6)
"""


def epochs_of(run):
    trial_of = {event["assignment"]: event["trial"] for event in launcher.events_of(run, "FoldAssigned")}
    return [(trial_of[event["assignment"]], event["epoch"]) for event in launcher.events_of(run, "EpochEnded")]


@pytest.mark.parametrize(
    ("program", "figures"),
    [
        pytest.param(KERAS, {"value", "val_loss", "loss"}, id="keras", marks=[pytest.mark.keras]),
    ],
)
def test_a_training_goes_on_with_its_optimizer_where_it_was_killed_or_paused(tmp_path, program, figures):
    (tmp_path / "program.py").write_text(HEAD + program + TAIL)
    start = "import runpy; runpy.run_path('program.py', run_name='__main__')"
    killed = launcher.python(start, "die", cwd=tmp_path, env=launcher.environment())
    killed.expect(-signal.SIGKILL)
    assert epochs_of(tmp_path / "checkpoints/killed") == [(0, epoch) for epoch in (1, 2, 3)]
    launcher.python(start, cwd=tmp_path, env=launcher.environment()).expect(0)
    assert epochs_of(tmp_path / "checkpoints/killed") == [(0, epoch) for epoch in range(1, 7)]
    paused = tmp_path / "checkpoints/paused"
    assert max(Counter(epochs_of(paused)).values()) == 1
    assert launcher.events_of(paused, "AssignmentPaused")
    assert any(event["epoch"] for event in launcher.events_of(paused, "FoldBegan"))
    reported = launcher.events_of(paused, "EpochEnded")
    assert all(event["checkpointed"] and event["metrics"].keys() >= figures for event in reported)
