"""A small problem for the tests of this folder: points in the plane, labelled by whether they lie in a circle."""

import numpy as np

from nnlo_opt import Data


class Circle(Data):
    """Each file name is a seed of 100 points."""

    def generate_data(self):
        for name in self.file_names:
            rng = np.random.default_rng(int(name))
            x = rng.uniform(-1, 1, (100, 2)).astype(np.float32)
            y = (np.hypot(*x.T) < 0.8).astype(np.int64)
            for start in range(0, 100, self.batch_size):
                yield [x[start : start + self.batch_size]], [y[start : start + self.batch_size]]


class Endless(Circle):
    """Does not return."""

    max_batches_per_epoch = 1000

    def generate_data(self):
        while True:
            yield from super().generate_data()
