"""The references of training.py without communication: `model.fit`, and the lean loop.

python training_loop.py {fit,lean} MODEL.py TRAIN.list BATCH STAMPS

A model that is compiled keeps its optimizer, loss and metrics. TRAIN.list may be "-" for the samples that the module's
`get_train` and `get_val` return.

A process trains without end. It says what its model is, a JSON line, and writes at what times it had trained how many
samples, after every batch (`lean`) or epoch (`fit`), into STAMPS: float64 (n, 2), zeros where nothing has been written.
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
from list_files import read

from nnlo_opt.core.base.vectors import aligned_empty
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.update_rules.clipping import Clipping
from nnlo_opt.core.update_rules.layers import layers_of
from nnlo_opt.core.update_rules.optimizers import Optimizer
from nnlo_opt.engine.models.keras.adapter import KerasAdapter
from nnlo_opt.engine.models.keras.compiled import arguments_of
from nnlo_opt.engine.models.keras.framework import import_framework
from nnlo_opt.engine.models.losses import LossTerm

LOSS = "categorical_crossentropy"


def main() -> None:
    kind, model_path, train, batch, path = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w")
    # Whatever a framework prints is not an answer.
    os.dup2(2, 1)
    import_framework(1)
    module = runpy.run_path(model_path)
    model = module["get_model"]()
    x, y = module["get_train"]() if train == "-" else read(Path(train))
    validation = module["get_val"]() if train == "-" else None
    said = {"n_weights": int(model.count_params()), "jit_compile": bool(getattr(model, "jit_compile", False))}
    print(json.dumps(said), file=answers, flush=True)
    if kind == "fit":
        train_by_fit(model, x, y, int(batch), stamping(Path(path)), validation)
    else:
        train_lean(model, x, y, int(batch), stamping(Path(path)))


def stamping(path: Path) -> Callable[[int], None]:
    """What is to be called with the samples trained since the last call, and writes a stamp."""
    stamps = np.memmap(path, np.float64, "r+").reshape(-1, 2)
    n_stamps = n_samples = 0

    def stamp(n_more: int) -> None:
        nonlocal n_stamps, n_samples
        n_samples += n_more
        # The time last: a stamp is there when it has one.
        stamps[n_stamps, 1], stamps[n_stamps, 0] = n_samples, time.time()
        n_stamps += 1

    return stamp


def train_lean(model: Any, x: np.ndarray, y: np.ndarray, batch: int, stamp: Callable[[int], None]) -> None:
    """The compiled step of our own adapter and our optimizer in place, on shuffled batches, and nothing else."""
    adapter = KerasAdapter(model, [LossTerm("output", LOSS, accuracy="categorical")])
    weights, gradient = aligned_empty(adapter.n_weights), aligned_empty(adapter.n_weights)
    adapter.read_weights(weights)
    optimizer, clipping = own_steps(model, adapter)
    rng = np.random.default_rng(os.getpid())
    while True:
        order = rng.permutation(len(x))
        for start in range(0, len(x), batch):
            chosen = order[start : start + batch]
            adapter.gradient(np.take(x, chosen, axis=0), np.take(y, chosen, axis=0), gradient)
            if clipping:
                clipping.clip(gradient)
            optimizer.apply(weights, gradient)
            adapter.write_weights(weights)
            stamp(len(chosen))


def own_steps(model: Any, adapter: KerasAdapter) -> tuple[Optimizer, Clipping | None]:
    """Adam, or the optimizer of a compiled model, and what clips its gradients."""
    steps = arguments_of(model).steps or {"optimizer": "adam", "learning_rate": None, "optimizer_params": {}}
    options = TrainingOptions().with_steps(steps)
    return options.rule.optimizer(options, adapter.n_weights), options.clipping(
        layers_of((spec.name, spec.shape) for spec in adapter.layout.specs)
    )


def train_by_fit(
    model: Any, x: np.ndarray, y: np.ndarray, batch: int, stamp: Callable[[int], None], validation: Any = None
) -> None:
    """`model.fit` as anyone would write it, from arrays in memory, validated if there are samples for it."""
    import keras

    if not model.compiled:
        model.compile("adam", LOSS, metrics=["accuracy"])
    clock = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: stamp(len(x)))
    model.fit(x, y, batch_size=batch, epochs=1_000_000, validation_data=validation, callbacks=[clock], verbose=0)


if __name__ == "__main__":
    main()
