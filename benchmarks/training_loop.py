"""The references of training.py without communication: `model.fit`, and the lean loop.

python training_loop.py {fit,lean} MODEL.py TRAIN.list BATCH

A process stays for all repeats, so that its start and tracing are paid once. It prints a JSON line when it is ready,
then reads one a measurement from standard input and answers each with a line; it sleeps in between, and ends with its
input.
"""

import json
import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from plain_fit import read

from nnlo_opt.algorithms.optimizers import make_optimizer
from nnlo_opt.models.keras_adapter import KerasAdapter
from nnlo_opt.models.keras_model import import_framework
from nnlo_opt.models.loss_terms import LossTerm
from nnlo_opt.vectors import aligned_empty

LOSS = "categorical_crossentropy"

#: measures as a command says
Measure = Callable[[dict[str, Any]], dict[str, Any]]


def main() -> None:
    kind, model_path, train, batch = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    # Whatever a framework prints is not an answer.
    os.dup2(2, 1)
    import_framework(1)
    model = runpy.run_path(model_path)["get_model"]()
    x, y = read(Path(train))
    prepare = {"fit": prepare_fit, "lean": prepare_lean}[kind]
    measure = prepare(model, x, y, int(batch))
    said = {"n_weights": int(model.count_params()), "jit_compile": bool(getattr(model, "jit_compile", False))}
    print(json.dumps(said), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(measure(json.loads(line))), file=answers, flush=True)


def prepare_lean(model: Any, x: np.ndarray, y: np.ndarray, batch: int) -> Measure:
    """The compiled step of our own adapter and our optimizer in place, on shuffled batches, and nothing else."""
    adapter = KerasAdapter(model, [LossTerm("output", LOSS, accuracy="categorical")])
    weights, gradient = aligned_empty(adapter.n_weights), aligned_empty(adapter.n_weights)
    adapter.read_weights(weights)
    optimizer = make_optimizer("adam", adapter.n_weights)
    rng = np.random.default_rng(os.getpid())
    order = rng.permutation(len(x))
    offset = 0

    def step() -> int:
        nonlocal order, offset
        chosen = order[offset : offset + batch]
        adapter.gradient(np.take(x, chosen, axis=0), np.take(y, chosen, axis=0), gradient)
        optimizer.apply(weights, gradient)
        adapter.write_weights(weights)
        offset += len(chosen)
        if offset >= len(x):
            order, offset = rng.permutation(len(x)), 0
        return len(chosen)

    def measure(command: dict[str, float]) -> dict[str, Any]:
        """Samples a second in the window from `start_s` to `end_s` of the machine's clock, whole batches only.

        `batches_s`: how long each took.
        """
        # Loops side by side all run before the window opens, and until it has closed for all of them.
        while time.monotonic() < command["start_s"]:
            step()
        began_s = ended_s = time.monotonic()
        n_samples, batches_s = 0, []
        while ended_s < command["end_s"]:
            n_samples += step()
            before_s, ended_s = ended_s, time.monotonic()
            batches_s.append(ended_s - before_s)
        while time.monotonic() < command["end_s"] + command["linger_s"]:
            step()
        return {"samples_per_s": n_samples / (ended_s - began_s), "batches_s": batches_s}

    step()
    return measure


def prepare_fit(model: Any, x: np.ndarray, y: np.ndarray, batch: int) -> Measure:
    """`model.fit` as anyone would write it, from arrays in memory, without validation."""
    import keras

    model.compile("adam", LOSS, metrics=["accuracy"])
    ends_s: list[float] = []
    deadline_s = 0.0

    def look(epoch: int, logs: dict[str, float]) -> None:
        ends_s.append(time.monotonic())
        model.stop_training = len(ends_s) > 1 and ends_s[-1] > deadline_s

    clock = keras.callbacks.LambdaCallback(on_epoch_end=look)

    def measure(command: dict[str, float]) -> dict[str, float]:
        """Samples a second of the epochs after the first, in which `fit` starts up, for at least `seconds`."""
        nonlocal deadline_s
        n_samples = min(int(command["n_samples"]), len(x))
        ends_s.clear()
        deadline_s = time.monotonic() + command["seconds"]
        model.fit(x[:n_samples], y[:n_samples], batch_size=batch, epochs=1_000_000, callbacks=[clock], verbose=0)
        return {"samples_per_s": n_samples * (len(ends_s) - 1) / (ends_s[-1] - ends_s[0])}

    model.fit(x[:batch], y[:batch], batch_size=batch, verbose=0)
    return measure


if __name__ == "__main__":
    main()
