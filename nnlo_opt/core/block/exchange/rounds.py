"""Synchronous rounds: equal models at first, one update of each worker in every round."""

from collections.abc import Iterable, Sequence

import numpy as np

from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.core.base.vectors import aligned_empty
from nnlo_opt.core.comm import messages as msg


class SynchronousRounds:
    """Rounds of one epoch, in which every worker passes once over its shard."""

    def __init__(self, workers: Iterable[int]) -> None:
        #: workers that still train in this epoch
        self.training = set(workers)
        #: those with an update in the current round
        self._here: set[int] = set()
        #: those whose update is the last in the epoch
        self._through: set[int] = set()

    def take(self, worker: int, *, is_last: bool) -> tuple[int, ...]:
        """Record that `worker` has pushed an update.

        Args:
            is_last: True if it is the worker's last update in this epoch.

        Returns:
            The workers with updates in the round, ascending; empty until the round is complete.
        """
        self._here.add(worker)
        if is_last:
            self._through.add(worker)
        if self._here != self.training:
            return ()
        complete = tuple(sorted(self._here))
        self.training -= self._through
        self._here.clear()
        self._through.clear()
        return complete


class HeldUpdates:
    """Copies of updates, kept until their round is complete; afterwards the answers, if the rule writes them."""

    def __init__(self) -> None:
        #: worker -> (samples, update)
        self._held: dict[int, tuple[int, np.ndarray]] = {}

    def keep(self, worker: int, n_samples: int, update: np.ndarray) -> None:
        """Copy the update of `worker`, float32 (n_weights,), replacing an earlier one."""
        _, buffer = self._held.get(worker, (0, None))
        buffer = aligned_empty(len(update)) if buffer is None else buffer
        np.copyto(buffer, update)
        self._held[worker] = n_samples, buffer

    def of(self, workers: Sequence[int]) -> list[tuple[int, np.ndarray]]:
        """Return (samples, update) of each of `workers` that has one, in their order."""
        return [self._held[worker] for worker in workers if worker in self._held]

    def answer_to(self, worker: int) -> np.ndarray:
        """Return the answer that the last round has written into the update of `worker`."""
        return self._held[worker][1]


def check_same_model(worker: int, ready: msg.WorkerReady, others: msg.WorkerReady) -> None:
    """Raise TrialError if the model or the data of `worker` differ from the `others`."""
    own, other = ((r.n_weights, r.n_state, r.n_train, *r.steps.values()) for r in (ready, others))
    if own != other:
        raise TrialError(
            "`get_model` must build the same model on every worker, and all must see the same data; worker "
            f"{worker} has (weights, state, training samples{', optimizer' * bool(ready.steps)}) {own}, another has "
            f"{other}"
        )


def average_states(states: Sequence[np.ndarray], n_workers: Sequence[int] | None = None) -> np.ndarray:
    """Return the mean of float model states (n_state,), each the mean of `n_workers` (None: of one); float64."""
    if n_workers is None:
        return np.asarray(np.mean(states, axis=0, dtype=np.float64))  # `average` fails for empty states
    return np.asarray(np.average(np.asarray(states, np.float64), axis=0, weights=n_workers))
