"""Downpour SGD: workers push gradients to the central weights, each at its own pace, and adopt what comes back.

Dean et al., "Large Scale Distributed Deep Networks" (NIPS 2012), section 4.1 and Algorithm 7.1: after every n_push
batches a worker pushes its accumulated gradient, and pulls the central weights. Here push and pull are one exchange
every k batches (the sync period), and the optimizer at the master is a choice, where the paper takes Adagrad.

Notation: g_j is the mean gradient of batch j of n_j samples. At k = 1 a worker pushes g_1. At k > 1 it makes local
steps x <- x - lr g_j in between (or those of another local optimizer) and pushes

    u = k * sum_j(n_j g_j) / sum_j(n_j)                                                        (1)

which is their plain sum when batches are equally long: one worker with SGD of the same learning rate at the master
then is serial SGD. Synchronous training averages the pushes u_i of the workers, of N_i samples each, into

    u = sum_i(N_i u_i) / sum_i(N_i)                                                            (2)

which at k = 1 is the gradient of the union of their batches, however the samples are divided.
"""

from collections.abc import Sequence

import numpy as np

from nnlo_opt.update_rules.vectors import FloatVector, add_scaled, scratch_for


def combine(updates: Sequence[tuple[int, FloatVector]], out: FloatVector) -> None:
    """Write the average of `updates`, pairs (n_samples, vector), weighted by samples as in (2), into `out`.

    Summed in the order given, so the same order gives the same bits. `out` is none of the vectors.
    """
    total = sum(n_samples for n_samples, _ in updates)
    if total <= 0:
        raise ValueError(f"Updates of at least one sample are expected. Received: {len(updates)} updates of {total}.")
    (n_first, first), *others = updates
    np.multiply(first, n_first / total, out=out)
    scratch = scratch_for(len(out))
    for n_samples, vector in others:
        add_scaled(out, vector, n_samples / total, scratch)


class LocalSteps:
    """A worker's accumulation over one sync period: the gradients along its local steps, one push at the end."""

    def __init__(self, n_weights: int) -> None:
        #: sum of n_j / n_1 * g_j: exactly g_1 after one batch, exactly the plain sum for equal batches
        self._sum = np.zeros(n_weights, np.float32)
        #: n_1, samples of the first batch of the period
        self._n_first = 0
        #: batches and samples of the period so far
        self.n_batches = 0
        self.n_samples = 0
        self._scratch = scratch_for(n_weights)

    def add(self, gradient: FloatVector, n_samples: int) -> None:
        """Take one batch in: add its `gradient` (n_weights,), the mean over `n_samples`."""
        if n_samples < 1:
            raise ValueError(f"A batch of at least one sample is expected. Received: {n_samples}.")
        if self.n_batches:
            add_scaled(self._sum, gradient, n_samples / self._n_first, self._scratch)
        else:
            self._n_first = n_samples
            np.copyto(self._sum, gradient)
        self.n_batches += 1
        self.n_samples += n_samples

    def result(self, out: FloatVector) -> int:
        """Write the update (1) into `out`, begin the next period, and return the samples behind the update."""
        if not self.n_batches:
            raise ValueError("A sync period of at least one batch is expected. Received: none.")
        np.multiply(self._sum, self.n_batches * self._n_first / self.n_samples, out=out)
        n_samples, self.n_batches, self.n_samples = self.n_samples, 0, 0
        return n_samples
