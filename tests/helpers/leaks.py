"""A search for leaks."""

import gc
import resource

import numpy as np


def growth(action, n_before, n):
    """Objects and kilobytes by which the process grows over `n` calls, after the first `n_before`."""

    def size():
        gc.collect()
        return np.array([len(gc.get_objects()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss])

    for _ in range(n_before):
        action()
    before = size()
    for _ in range(n):
        action()
    return size() - before
