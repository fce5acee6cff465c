"""The control of throughput.py: `model.fit` as anyone would write it. Prints one JSON line.

python plain_fit.py MODEL.py TRAIN.list VALIDATION.list N_EPOCHS
"""

import importlib.util
import json
import sys
import time
from pathlib import Path

import h5py
import numpy as np


def main() -> None:
    model_path, train, validation, n_epochs = sys.argv[1:]
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    x, y = read(Path(train))
    spec = importlib.util.spec_from_file_location("model", model_path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = module.get_model()
    model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
    ends_s: list[float] = []
    clock = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ends_s.append(time.monotonic()))
    model.fit(
        x,
        y,
        batch_size=100,
        epochs=int(n_epochs),
        validation_data=read(Path(validation)),
        validation_batch_size=128,
        callbacks=[clock],
        verbose=0,
    )
    samples_per_s = len(x) * (len(ends_s) - 1) / (ends_s[-1] - ends_s[0])
    print(json.dumps({"samples_per_s": samples_per_s, "jit_compile": bool(model.jit_compile)}))


def read(list_file: Path) -> tuple[np.ndarray, np.ndarray]:
    """All samples of the HDF5 files in a list."""
    paths = [list_file.parent / line for line in list_file.read_text().split("\n") if line.strip()]
    files = [h5py.File(path) for path in paths]
    x, y = (np.concatenate([file[name][:] for file in files]) for name in ("features", "labels"))
    return x, y


if __name__ == "__main__":
    main()
