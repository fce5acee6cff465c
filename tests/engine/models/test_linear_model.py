import numpy as np

from nnlo_opt.testing.model_conformance import ModelConformance
from tests.helpers.linear_model import LinearAdapter


class TestLinearAdapter(ModelConformance):
    suffix = ".json"

    def make(self):
        return LinearAdapter(4)

    def batch(self, n_samples, seed):
        rng = np.random.default_rng(seed)
        return rng.normal(size=(n_samples, 4)).astype(np.float32), rng.normal(size=n_samples).astype(np.float32)
