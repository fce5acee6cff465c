"""Small data sets in memory."""

import numpy as np

from nnlo_opt.core.data.arrays import ArraySource


def linear_source(n_samples: int, n_features: int = 3, seed: int = 0) -> ArraySource:
    """Return samples for a linear model: x (n, n_features) normal, y (n,) linear in x with a little noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_samples, n_features))
    y = x @ rng.normal(size=n_features) + 0.5 + 0.1 * rng.normal(size=n_samples)
    return ArraySource(x, y.astype(np.float32))


def numbered_source(n_samples: int) -> ArraySource:
    """Return samples that are identified by their label: y is the number of the sample, x (n, 1) is 0."""
    return ArraySource(np.zeros((n_samples, 1)), np.arange(n_samples, dtype=np.float32))
