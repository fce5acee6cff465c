"""The reference's protocol rebuilt, Downpour asynchronous with one batch an exchange, for training.py. One rank of it.

mpirun -np RANKS python training_reference.py --model MODEL.py --train-data TRAIN.list --batch N --seconds S \
    --checkpoint FOLDER

As REFERENCE.md, section 2.1, has it: every exchange is a pickled tag that announces the update, a pickled time step, a
pickled permission, one message for every array, a pickled time step, a pickled tag, and again one message for every
array, all of them blocking. The worker works by `set_weights`, `train_on_batch` and `get_weights`, on batches in stored
order. Both sides spin in MPI, as they did. Three things are kinder than the reference was: the worker's optimizer is
sgd with a rate of 1, so that the difference of weights is the gradient; the tag that the reference sent and never
received is received; the last batch of a pass is not dropped.

Writes FOLDER/reference.json: samples a second of all workers, from when the last one was warm until the first was done.
"""

import argparse
import json
import runpy
import time
from pathlib import Path

import numpy as np
from list_files import read
from mpi4py import MPI

EXIT, BEGIN_UPDATE, TIME, PERMIT, WEIGHTS, BEGIN_WEIGHTS = 1, 2, 3, 4, 12, 13
MASTER = 0
N_WARM_UP_BATCHES = 20
Arrays = list[np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True)
    parser.add_argument("--train-data", type=Path, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    arguments = parser.parse_args()
    comm = MPI.COMM_WORLD
    workers = comm.Split(color=int(comm.rank == MASTER))
    found = comm.gather(serve(comm) if comm.rank == MASTER else train(comm, workers, arguments), root=MASTER)
    if comm.rank == MASTER:
        rates, losses = zip(*(pair for pair in found if pair), strict=True)
        arguments.checkpoint.mkdir(parents=True)
        figures = {"samples_per_s": sum(rates), "loss": float(np.mean(losses))}
        (arguments.checkpoint / "reference.json").write_text(json.dumps(figures))


# ---------------------------------------------------------------- the master


def serve(comm: MPI.Comm) -> None:
    """Apply updates one at a time, in the order in which they come, until every worker has said that it ends."""
    shapes = comm.recv(source=1, tag=WEIGHTS)
    weights = receive(comm, 1, shapes)
    for worker in range(1, comm.size):
        send(comm, worker, weights)
    optimizer = NaiveAdam(weights)
    n_updates, n_left, status = 0, comm.size - 1, MPI.Status()
    while n_left:
        comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG, status=status)
        worker = status.Get_source()
        if status.Get_tag() == EXIT:
            n_left -= 1
            continue
        comm.recv(source=worker, tag=TIME)
        comm.send(True, dest=worker, tag=PERMIT)
        weights = optimizer.apply(weights, receive(comm, worker, shapes))
        n_updates += 1
        comm.send(n_updates, dest=worker, tag=TIME)
        comm.send(None, dest=worker, tag=BEGIN_WEIGHTS)
        send(comm, worker, weights)


class NaiveAdam:
    """Adam array by array, each intermediate result an array of its own."""

    def __init__(self, weights: Arrays) -> None:
        self._m = [np.zeros_like(w) for w in weights]
        self._v = [np.zeros_like(w) for w in weights]
        self._n_steps = 0

    def apply(self, weights: Arrays, gradient: Arrays) -> Arrays:
        self._n_steps += 1
        rate = 1e-3 * np.float32(np.sqrt(1 - 0.999**self._n_steps) / (1 - 0.9**self._n_steps))
        self._m = [0.9 * m + (1 - 0.9) * g for m, g in zip(self._m, gradient, strict=True)]
        self._v = [0.999 * v + (1 - 0.999) * np.square(g) for v, g in zip(self._v, gradient, strict=True)]
        return [w - rate * m / (np.sqrt(v) + 1e-8) for w, m, v in zip(weights, self._m, self._v, strict=True)]


# ---------------------------------------------------------------- a worker


def train(comm: MPI.Comm, workers: MPI.Comm, arguments: argparse.Namespace) -> tuple[float, float]:
    """Train until the time is over; samples a second from when all workers were warm, and the mean of the last losses.

    Collective: every worker.
    """
    import keras
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    model = runpy.run_path(arguments.model)["get_model"]()
    model.compile(keras.optimizers.SGD(1.0), "categorical_crossentropy", metrics=["accuracy"])
    batch = arguments.batch
    x, y = (part[workers.rank :: workers.size].copy() for part in read(arguments.train_data))
    shapes = [w.shape for w in model.get_weights()]
    if comm.rank == 1:
        comm.send(shapes, dest=MASTER, tag=WEIGHTS)
        send(comm, MASTER, model.get_weights())
    weights = receive(comm, MASTER, shapes)
    n_updates = offset = 0
    losses: list[float] = []

    def step() -> None:
        nonlocal weights, n_updates, offset
        model.set_weights(weights)
        losses.append(float(model.train_on_batch(x[offset : offset + batch], y[offset : offset + batch])[0]))
        update = [w - trained for w, trained in zip(weights, model.get_weights(), strict=True)]
        comm.send(None, dest=MASTER, tag=BEGIN_UPDATE)
        comm.send(n_updates, dest=MASTER, tag=TIME)
        if comm.recv(source=MASTER, tag=PERMIT):
            send(comm, MASTER, update)
            n_updates = comm.recv(source=MASTER, tag=TIME)
            comm.recv(source=MASTER, tag=BEGIN_WEIGHTS)
            weights = receive(comm, MASTER, shapes)
        offset = offset + batch if offset + 2 * batch <= len(x) else 0

    for _ in range(N_WARM_UP_BATCHES):
        step()
    workers.Barrier()
    began_s, n_batches = time.monotonic(), 0
    while (took_s := time.monotonic() - began_s) < arguments.seconds:
        step()
        n_batches += 1
    comm.send(None, dest=MASTER, tag=EXIT)
    return n_batches * batch / took_s, float(np.mean(losses[-N_WARM_UP_BATCHES:]))


def send(comm: MPI.Comm, dest: int, arrays: Arrays) -> None:
    """One message for every array."""
    for array in arrays:
        comm.Send(np.ascontiguousarray(array), dest=dest, tag=WEIGHTS)


def receive(comm: MPI.Comm, source: int, shapes: list[tuple[int, ...]]) -> Arrays:
    """One array for every message."""
    arrays = [np.empty(shape, np.float32) for shape in shapes]
    for array in arrays:
        comm.Recv(array, source=source, tag=WEIGHTS)
    return arrays


if __name__ == "__main__":
    main()
