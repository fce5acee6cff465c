"""A rank of `model.fit` with averaged gradients, for training.py: what training_loop.py's `fit` is without ranks.

mpirun -np RANKS python training_horovod.py --model MODEL.py --train-data TRAIN.list --batch N --checkpoint FOLDER

It trains without end, and writes at what times it had trained how many samples into FOLDER/rank-N.stamps, as
training_loop.py does.
"""

import argparse
import runpy
from pathlib import Path

from plain_fit import read
from training_loop import LOSS, stamping

import nnlo_opt.allreduce as hvd
from nnlo_opt.models.keras_model import import_framework


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--train-data", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    arguments = parser.parse_args()
    import_framework(1)
    import keras

    hvd.init()
    model = runpy.run_path(arguments.model)["get_model"]()
    x, y = read(arguments.train_data)
    stamp = stamping(arguments.checkpoint / f"rank-{hvd.rank()}.stamps")
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam()), LOSS, metrics=["accuracy"])
    clock = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: stamp(len(x)))
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    model.fit(x, y, batch_size=arguments.batch, epochs=1_000_000, callbacks=[first, clock], verbose=0)


if __name__ == "__main__":
    main()
