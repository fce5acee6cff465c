"""A rank's share of the validation of one version of the weights."""

import math

import numpy as np

from nnlo_opt.block.task import FoldTask
from nnlo_opt.errors import ProtocolError, TrialError
from nnlo_opt.runtime.pulse import PULSE, SLOW


def validate(task: FoldTask, weights_and_state: np.ndarray) -> tuple[int, dict[str, float]]:
    """Evaluate at the weights and float model state that lie in one vector; -> (samples, sums over them).

    The adapter holds them afterwards. Raises TrialError for a figure that is not finite.
    """
    n_weights, n_state = task.adapter.n_weights, task.adapter.n_state
    if len(weights_and_state) != n_weights + n_state:
        raise ProtocolError(f"{n_weights} weights and {n_state} numbers of state are validated together.")
    task.adapter.write_weights(weights_and_state[:n_weights])
    task.adapter.write_state(weights_and_state[n_weights:])
    n_samples, sums = 0, dict[str, float]()
    PULSE.expect(SLOW)  # the first batch may have to be compiled
    for x, y in task.validation_batches():
        metrics = task.adapter.evaluate(x, y)
        PULSE.ticks += 1
        n_samples += metrics.n_samples
        for name, value in metrics.sums.items():
            sums[name] = sums.get(name, 0.0) + value
    for name, value in sums.items():
        if not math.isfinite(value):
            raise TrialError(f"val_{name} is {value} (a non-finite figure): lower the learning rate")
    return n_samples, sums
