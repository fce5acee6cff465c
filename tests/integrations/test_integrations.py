"""Callbacks for other frameworks: a training goes on in the epoch in which it was killed, or paused."""

import re
import signal
from collections import Counter
from pathlib import Path

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


batches = []


def in_batch(epoch):
    # Die in the middle of epoch 4, whose first batches are trained again.
    batches.append(epoch)
    if "die" in sys.argv and batches.count(4) == 3:
        os.kill(os.getpid(), signal.SIGKILL)
"""

#: data that draw numbers of every kind whenever a row is taken
NOISY = """
import random
import torch

generator = np.random.default_rng(1)


class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, n):
        drawn = random.random() + np.random.normal() + float(torch.randn(())) + generator.normal()
        return torch.tensor(x[n] + 0.1 * drawn, dtype=torch.float32), torch.tensor(y[n])


def seed_everything():
    global generator
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    generator = np.random.default_rng(1)


def loader(**how):
    return torch.utils.data.DataLoader(Noisy(), 16, shuffle=True, **how)
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
    hidden = [layers.Dense(8), layers.BatchNormalization(), layers.Dropout(0.2, seed=1)]
    model = keras.Sequential([keras.Input((4,)), *hidden, layers.Dense(1)])
    model.compile(keras.optimizers.Adam(trial.parameters["lr"]), "mse")
    callback = TrialCallback(trial, "val_loss")
    began.append(callback.epoch)
    settings = {"epochs": 6, "initial_epoch": callback.epoch, "verbose": 0, "shuffle": False}
    model.fit(Batches(workers=1), validation_data=(x, y), callbacks=[Watch(), callback], **settings)
    finals.append([*model.get_weights(), *map(keras.ops.convert_to_numpy, model.optimizer.variables)])
    return callback.value
"""

LIGHTNING = (
    NOISY
    + """
import lightning
import torch
from nnlo_opt.integrations.lightning import TrialCallback

torch.set_num_threads(1)


class Model(lightning.LightningModule):
    def __init__(self, lr):
        super().__init__()
        self.lr = lr
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.2),
                                          torch.nn.Linear(8, 1))

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), self.lr)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)]

    def training_step(self, batch, n):
        in_batch(self.current_epoch + 1)
        loss = torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])
        self.log("loss", loss, on_epoch=True, on_step=False)
        return loss

    def validation_step(self, batch, n):
        self.log("val_loss", torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1]))


def objective(trial):
    seed_everything()
    model = Model(trial.parameters["lr"])
    data = loader(generator=torch.Generator().manual_seed(2)) if "own" in sys.argv else loader()
    callback = TrialCallback(trial, "val_loss", random=[generator])
    began.append(callback.epoch)
    shows = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    quiet = dict.fromkeys(shows, False)
    trainer = lightning.Trainer(accelerator="cpu", max_epochs=6, callbacks=[callback], **quiet)
    trainer.fit(model, data, loader(), ckpt_path=callback.ckpt_path)
    adam = trainer.optimizers[0].state_dict()
    moments = [part[name] for part in adam["state"].values() for name in ("exp_avg", "exp_avg_sq")]
    finals.append([*model.state_dict().values(), *moments, adam["param_groups"][0]["lr"]])
    return callback.value
"""
)

TRANSFORMERS = (
    NOISY
    + """
from nnlo_opt.integrations.transformers import TrialCallback
from transformers import BertConfig, BertForSequenceClassification, set_seed
from transformers import Trainer, TrainerCallback, TrainingArguments

torch.set_num_threads(1)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 32

    def __getitem__(self, n):
        drawn = [random.random(), np.random.random(), float(torch.rand(())), generator.random()]
        return {"input_ids": torch.tensor([n % 5, 3, *(int(32 * number) for number in drawn)]), "labels": n % 2}


rows = Rows()


class Watch(TrainerCallback):
    def on_step_begin(self, args, state, control, **kwargs):
        in_batch(int(state.epoch) + 1)


def objective(trial):
    set_seed(1)
    seed_everything()
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16}
    model = BertForSequenceClassification(BertConfig(num_hidden_layers=1, num_attention_heads=2, **sizes))
    callback = TrialCallback(trial, "eval_loss", random=[generator])
    began.append(callback.epoch)
    quiet = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True}
    settings = {"num_train_epochs": 6, "eval_strategy": "epoch", "logging_strategy": "epoch", **quiet}
    arguments = TrainingArguments(str(trial.directory / "out"), learning_rate=trial.parameters["lr"], **settings)
    trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows, callbacks=[callback, Watch()])
    trainer.train(resume_from_checkpoint=callback.resume_from)
    adam = trainer.optimizer.state_dict()
    moments = [part[name] for part in adam["state"].values() for name in ("exp_avg", "exp_avg_sq")]
    finals.append([*model.state_dict().values(), *moments, adam["param_groups"][0]["lr"]])
    assert not [*(trial.directory / "out").iterdir()]
    return callback.value
"""
)

TORCH = (
    NOISY
    + """
from nnlo_opt.integrations.random_state import load_random_state, save_random_state


def objective(parameters, report, checkpoint):
    seed_everything()
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), parameters["lr"])
    data = loader(generator=torch.Generator().manual_seed(2)) if "own" in sys.argv else loader()
    began.append(checkpoint.epoch)
    if checkpoint.folder is not None:
        saved = torch.load(checkpoint.folder / "state.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    load_random_state(checkpoint.folder, data, generator)

    def write(folder):
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")
        save_random_state(folder, data, generator)

    for epoch in range(checkpoint.epoch + 1, 7):
        for inputs, targets in data:
            in_batch(epoch)
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        checkpoint.save(epoch, write)
        report(epoch, loss.item())
    moments = [part[name] for part in optimizer.state_dict()["state"].values() for name in ("exp_avg", "exp_avg_sq")]
    finals.append([*model.state_dict().values(), *moments])
    return loss.item()
"""
)

TAIL = """
def search(name):
    space = {"lr": nnlo_opt.Real(0.001, 0.1, "log-uniform")}
    options = {"hyper_opt": "random", "checkpoint": name, "catch": False, "opt_restore": True}
    return nnlo_opt.optimize(objective, space, num_iterations=1, **options)


result, whole = search("killed"), search("whole")
assert result.figure_of_merit == whole.figure_of_merit
assert began == [3, 0], began
for one, other in zip(*finals, strict=True):
    np.testing.assert_array_equal(one, other)
"""


#: framework -> marks of the tests that need it
MARKS = {
    "keras": pytest.mark.keras,
    "lightning": pytest.mark.needs("torch", "lightning"),
    "transformers": pytest.mark.needs("torch", "transformers"),
    "plain torch": pytest.mark.needs("torch"),
    "xgboost": pytest.mark.needs("xgboost"),
    "lightgbm": pytest.mark.needs("lightgbm"),
}
PAGE = Path(__file__).parents[2] / "docs/guide/integrations.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)
#: framework -> its program on the page
SHOWN = dict(zip((name for name in MARKS if name != "plain torch"), PROGRAMS, strict=True))


def of(programs):
    marks = {name: MARKS.get(name, pytest.mark.needs(name)) for name in programs}
    return [pytest.param(program, id=name, marks=marks[name]) for name, program in programs.items()]


def run(folder, program, *words):
    (folder / "program.py").write_text(program)
    # The search takes no words of a command line for its own.
    start = "import runpy; runpy.run_path('program.py', run_name='__main__')"
    return launcher.python(start, *words, cwd=folder, env=launcher.environment())


def epochs_of(run):
    trial_of = {event["assignment"]: event["trial"] for event in launcher.events_of(run, "FoldAssigned")}
    return [(trial_of[event["assignment"]], event["epoch"]) for event in launcher.events_of(run, "EpochEnded")]


#: framework, or backend of Keras -> program
TRAININGS = {"keras": KERAS, "lightning": LIGHTNING, "transformers": TRANSFORMERS, "plain torch": TORCH}
TRAININGS |= {name: f"os.environ['KERAS_BACKEND'] = '{name}'\n{KERAS}" for name in ("torch", "jax")}


@pytest.mark.proof
@pytest.mark.parametrize("program", of(TRAININGS))
def test_a_killed_training_continues_with_its_optimizer(tmp_path, program):
    killed = tmp_path / "checkpoints/killed"
    run(tmp_path, HEAD + program + TAIL, "die").expect(-signal.SIGKILL)
    assert epochs_of(killed) == [(0, epoch) for epoch in (1, 2, 3)]
    run(tmp_path, HEAD + program + TAIL).expect(0)
    assert epochs_of(killed) == [(0, epoch) for epoch in range(1, 7)]


@pytest.mark.proof
@pytest.mark.parametrize("program", of({name: TRAININGS[name] for name in ("lightning", "plain torch")}))
def test_a_loader_with_its_own_generator_continues_its_order(tmp_path, program):
    run(tmp_path, HEAD + program + TAIL, "die", "own").expect(-signal.SIGKILL)
    run(tmp_path, HEAD + program + TAIL, "own").expect(0)


@pytest.mark.proof
@pytest.mark.parametrize("program", of(SHOWN))
def test_a_program_of_the_guide_continues_after_a_pause(tmp_path, program):
    run(tmp_path, program).expect(0)
    (directory,) = (tmp_path / "checkpoints").iterdir()
    assert max(Counter(epochs_of(directory)).values()) == 1
    assert launcher.events_of(directory, "AssignmentPaused")
    assert any(event["epoch"] for event in launcher.events_of(directory, "FoldBegan"))
    assert all(event["checkpointed"] for event in launcher.events_of(directory, "EpochEnded"))
