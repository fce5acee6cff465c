"""A rank of `model.fit` with averaged gradients, for training.py: what training_loop.py's `fit` is without ranks.

mpirun -np RANKS python training_horovod.py --model MODEL.py --train-data TRAIN.list --batch N --checkpoint FOLDER

With `--meet` nothing is averaged: the ranks only wait for each other after each batch, the least that any training with
equal steps must do.

It trains without end, and writes at what times it had trained how many samples into FOLDER/rank-N.stamps, as
training_loop.py does.
"""

import argparse
import runpy
from pathlib import Path

from list_files import read
from training_loop import LOSS, stamping

import nnlo_opt.allreduce as hvd
from nnlo_opt.engine.models.keras.framework import import_framework


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--train-data", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--meet", action="store_true")
    arguments = parser.parse_args()
    import_framework(1)
    import keras
    from mpi4py import MPI

    hvd.init()
    model = runpy.run_path(arguments.model)["get_model"]()
    x, y = read(arguments.train_data)
    stamp = stamping(arguments.checkpoint / f"rank-{hvd.rank()}.stamps")
    adam = keras.optimizers.Adam()
    model.compile(adam if arguments.meet else hvd.DistributedOptimizer(adam), LOSS, metrics=["accuracy"])
    callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: stamp(len(x)))]
    if arguments.meet:
        callbacks.append(
            keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: MPI.COMM_WORLD.Barrier())
        )
    else:
        callbacks.append(hvd.callbacks.BroadcastGlobalVariablesCallback(0))
    model.fit(x, y, batch_size=arguments.batch, epochs=1_000_000, callbacks=callbacks, verbose=0)


if __name__ == "__main__":
    main()
