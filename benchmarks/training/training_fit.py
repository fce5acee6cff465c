"""The other side of the whole runs of training.py: one script by `model.fit` on one core, from start to end.

python training_fit.py MODEL.py TRAIN.list VALIDATION.list N_EPOCHS BATCH FOLDER

It reads HDF5 files, validates and writes a checkpoint every epoch, and saves the model, as `TrainingDriver` does.
"""

import os
import runpy
import sys
from pathlib import Path

from list_files import read


def main() -> None:
    model_path, train, validation, n_epochs, batch, folder = sys.argv[1:]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    x, y = read(Path(train))
    model = runpy.run_path(model_path)["get_model"]()
    model.compile("adam", "categorical_crossentropy", metrics=["accuracy"])
    model.fit(
        x,
        y,
        batch_size=int(batch),
        epochs=int(n_epochs),
        validation_data=read(Path(validation)),
        validation_batch_size=128,
        callbacks=[keras.callbacks.ModelCheckpoint(str(Path(folder) / "checkpoint.keras"))],
        verbose=0,
    )
    model.save(Path(folder) / "model.keras")


if __name__ == "__main__":
    main()
