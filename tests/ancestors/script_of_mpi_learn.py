"""Script as users of mpi_learn wrote theirs: data and builder of its own, and the former names of Keras."""

import argparse
import os

os.environ["KERAS_BACKEND"] = "theano"

from mpi4py import MPI
from mpi_learn.mpi.manager import MPIManager, get_device
from mpi_learn.train.algo import Algo
from mpi_learn.train.data import Data
from mpi_learn.train.model import ModelBuilder, MPIModel
from mpi_learn.utils import import_keras


class Points(Data):
    def generate_data(self):
        import numpy as np

        rng = np.random.default_rng(1)
        for _ in range(10):
            x = rng.normal(size=(self.batch_size, 2)).astype("float32")
            yield [x], [np.eye(2, dtype="float32")[(x[:, 0] > 0).astype(int)]]


class Builder(ModelBuilder):
    def build_model(self):
        import keras.backend as K
        from keras.layers.core import Activation, Dense
        from keras.models import Sequential

        assert K.image_dim_ordering() == "tf"
        model = Sequential()
        model.add(Dense(output_dim=8, input_dim=2, init="glorot_uniform"))
        model.add(Activation("relu"))
        model.add(Dense(output_dim=2))
        model.add(Activation("softmax"))
        return MPIModel(model=model)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=1)
    args = parser.parse_args()
    comm = MPI.COMM_WORLD.Dup()
    device = get_device(comm, 1, gpu_limit=0)
    import_keras()
    elastic = {"elastic_force": 0.9 / max(1, comm.Get_size() - 1), "elastic_lr": 1.0, "elastic_momentum": 0}
    rule = {"validate_every": 10, "mode": "easgd", "worker_optimizer": "sgd", **elastic}
    algo = Algo(None, loss="categorical_crossentropy", **rule)
    settings = {"num_epochs": args.epochs, "train_list": ["a", "b"], "val_list": ["c"]}
    manager = MPIManager(comm=comm, data=Points(50), algo=algo, model_builder=Builder(comm), **settings)
    if comm.Get_rank() == 0:
        histories = manager.process.train()
        manager.free_comms()
        (rank,) = [key for key in histories if key.startswith("0:")]
        print(device, sorted(histories[rank]), format(histories[rank]["val_loss"][-1], ".3f"))
