"""What ranks run in the tests of this folder: `mpirun python rank_scripts.py NAME,... [NETWORK]`, as a user's script.

Of ranks that take seconds to start all that is possible is made use of: `3:NAME` is run by the first three of them.
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
from mpi4py import MPI

from nnlo_opt import Algo, ModelBuilder, MPIKFoldManager, MPIManager
from nnlo_opt.core.base.errors import TrialError
from tests.helpers.circle import Circle, Endless

WORLD = MPI.COMM_WORLD
#: of the ranks that run the script
COMM = WORLD
FILES = [str(i) for i in range(6)]
#: the framework of the networks
NETWORK = (sys.argv[2:] or ["torch"])[0]
SUFFIX, LOSS = {"torch": (".pt", "CrossEntropy"), "dense": (".npz", "sparse_categorical_crossentropy")}[NETWORK]


class DenseNet(ModelBuilder):
    def build_model(self):
        import dense

        return dense.Net(16, 2, 2)


class TorchNet(ModelBuilder):
    def build_model(self):
        import torch

        return torch.nn.Sequential(torch.nn.Linear(2, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))


class KerasNet(ModelBuilder):
    def build_model(self):
        import keras

        layers = [keras.layers.Dense(16, "tanh"), keras.layers.Dense(2, "softmax")]
        return keras.Sequential([keras.Input((2,)), *layers])


class Broken(ModelBuilder):
    def build_model(self):
        if COMM.Get_rank() == COMM.Get_size() - 1:
            raise ZeroDivisionError
        if NETWORK == "torch":
            return TorchNet().build_model()
        import dense

        return dense.Net(16, 2, 2)

    def get_backend_name(self):
        return "torch" if NETWORK == "torch" else None


def new_net():
    return TorchNet() if NETWORK == "torch" else DenseNet()


def weights_of(model):
    if NETWORK == "dense":
        return model.weights
    return np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])


def algo(**changes):
    return Algo(**{"optimizer": "adam", "loss": LOSS, "learning_rate": 0.02, **changes})


def manager_of(comm=None, files=FILES, data=None, builder=None, epochs=4, **changes):
    of_algo = changes.pop("algo", None) or algo()
    return MPIManager(comm or COMM, data or Circle(20), of_algo, builder or new_net(), epochs, files, ["9"], **changes)


def everybody_calls_train():
    manager = manager_of(epochs=8)
    history = manager.train()
    losses = history["history"]["0:-:-"]["val_loss"]
    assert min(losses[1:]) < losses[0]
    n_workers = max(1, COMM.Get_size() - 1)
    assert manager.num_workers == n_workers
    if COMM.Get_size() > 1:
        assert set(history["history"]) == {"0:-:-", *(f"{i}:{i}:-" for i in range(1, n_workers + 1))}
    assert manager.is_master == (COMM.Get_rank() == 0)
    # All ranks know the same, and have the same model.
    assert len({json.dumps(h) for h in COMM.allgather(history)}) == 1
    assert len({w.tobytes() for w in COMM.allgather(weights_of(manager.model))}) == 1
    manager.save(f"everybody{SUFFIX}")
    COMM.barrier()
    assert Path(f"everybody{SUFFIX}").is_file()
    # This module has a builder of a Keras model too, and that of the torch module says in itself what it needs.
    assert "keras" not in sys.modules
    manager.close()


def the_ancestors_way():
    manager = manager_of(files=["0"])  # fewer files than workers
    if COMM.Get_rank() == 0:
        histories = manager.process.train()
        assert len(histories["0:-:-"]["val_loss"]) == 4
        manager.process.record_details("ancestors.json", meta={"args": {}})
    COMM.barrier()
    assert json.loads(Path("ancestors.json").read_text())["history"]
    manager.free_comms()


def every_mode():
    for changes in (
        {"mode": "easgd", "optimizer": None, "elastic_force": 0.3, "worker_optimizer": "sgd", "sync_every": 2},
        {"mode": "gem", "optimizer": "gem", "learning_rate": 0.01},
        {"mode": "allreduce"},
        {"synchronous": True},
    ):
        for files in (FILES, ["0"]):
            manager = manager_of(files=files, algo=algo(**changes), epochs=2)
            history = manager.train()["history"]
            assert len(history["0:-:-"]["val_loss"]) == 2
            # With a few batches only, the faster one of two workers may leave none to the other.
            assert max(len(metrics.get("loss", ())) for metrics in history.values()) == 2
            manager.close()


def rings():
    manager = manager_of(num_processes=2)
    assert manager.num_workers == 1
    assert set(manager.train()["history"]) == {"0:-:-", "1:1:-"}
    manager.close()


def masters():
    for changes in ({}, {"mode": "easgd", "optimizer": None, "elastic_force": 0.3}, {"synchronous": True}):
        manager = manager_of(num_masters=3, algo=algo(**changes), epochs=2)
        assert manager.num_workers == COMM.Get_size() - 3
        history = manager.train()["history"]
        numbers = COMM.allgather(manager.worker_id)
        assert sorted(number for number in numbers if number > 0) == list(range(1, manager.num_workers + 1))
        assert numbers.count(-1) == 3
        assert set(history) == {"0:-:-", *(f"{i}:{i}:-" for i in range(1, manager.num_workers + 1))}
        assert len(history["0:-:-"]["val_loss"]) == 2
        manager.close()


def failures_are_caught_and_the_next_training_works():
    for _ in range(2):
        manager = manager_of(builder=Broken())
        try:
            manager.train()
        except TrialError as error:
            assert "ZeroDivisionError" in str(error)  # noqa: PT017  (a script, not a test)
        else:
            raise AssertionError("it should have failed")
        manager.close()
    manager_of().train()


def an_untrained_manager_lets_go():
    manager_of().close()


def folds():
    manager = MPIKFoldManager(2, COMM, Circle(20), algo(), new_net(), 6, FILES, [])
    histories = manager.train()
    assert len(histories) == 2
    figures = manager.figures_of_merit()
    assert np.isclose(manager.figure_of_merit(), np.mean(figures))
    assert len({json.dumps(f) for f in COMM.allgather(figures)}) == 1
    assert manager.model is not None
    manager.close()


def callbacks_with_downpour():
    callbacks("downpour")


def callbacks_with_allreduce():
    callbacks("allreduce")


def callbacks(mode):
    import keras

    note = keras.callbacks.CSVLogger("log.csv")
    plateau = keras.callbacks.ReduceLROnPlateau(monitor="val_loss", factor=0.5, patience=1, min_delta=100.0)
    of_algo = algo(loss="sparse_categorical_crossentropy", mode=mode)
    of_manager = {"num_masters": 2} if COMM.Get_size() > 3 else {}
    manager = manager_of(builder=KerasNet(), algo=of_algo, callbacks=[plateau, note], **of_manager)
    history = manager.train()["history"]["0:-:-"]
    COMM.barrier()
    rows = Path("log.csv").read_text().splitlines()
    columns = rows[0].split(",")
    assert len(rows) == 5
    rates = [float(row.split(",")[columns.index("learning_rate")]) for row in rows[1:]]
    assert np.allclose(rates, [0.02, 0.02, 0.01, 0.005]), rates
    values = [float(row.split(",")[columns.index("val_loss")]) for row in rows[1:]]
    assert np.allclose(values, history["val_loss"])
    manager.close()


# ---------------------------------------------------------------- these must end with an error


def endless():
    manager_of(data=Endless(20))


def the_master_raises():
    manager_of()
    if COMM.Get_rank() == 0:
        raise RuntimeError("before the training")


def a_worker_raises_on_the_master_alone():
    manager = manager_of(builder=Broken())
    if COMM.Get_rank() == 0:
        manager.process.train()
    COMM.barrier()


def meet():
    """A barrier in which nobody spins."""
    everybody = WORLD.Ibarrier()
    while not everybody.Test():
        time.sleep(0.01)


def run(name, n_ranks):
    global COMM  # noqa: PLW0603  (as scripts have one)
    COMM = WORLD if n_ranks == WORLD.Get_size() else WORLD.Split(0 if WORLD.Get_rank() < n_ranks else 1)
    if WORLD.Get_rank() < n_ranks:
        globals()[name]()
    meet()


if __name__ == "__main__":
    for words in sys.argv[1].split(","):
        *n_ranks, name = words.split(":")
        run(name, int(n_ranks[0]) if n_ranks else WORLD.Get_size())
