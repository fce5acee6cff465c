"""Central weights in shared memory, updated directly by the workers: an exchange without messages.

If all workers of a team share memory with their master and do not wait for each other, the master gives them access to
its weights and the memory of its update rule. A worker then applies its update itself and reads the weights back, block
by block, each under its own lock. So an update costs as much as without communication; no process is woken, and workers
contend only if they meet in a block.

The update rules (Downpour, EASGD, GEM) and their order of versions are the same as at the master. Another worker may
get in between two blocks, so a reader may get blocks of neighbouring versions, like the workers of Dean et al., "Large
Scale Distributed Deep Networks" (NIPS 2012), do with their parameter server shards (section 4.1).

Platoon (Lamblin et al., 2016) shares weights between the processes of a node in this way, under a single lock.
"""

from typing import NamedTuple

import numpy as np

from nnlo_opt.core.base.vectors import offsets
from nnlo_opt.core.comm.transport import SharedMemory, Transport
from nnlo_opt.core.training.schedules import LearningRates
from nnlo_opt.core.update_rules.rule import Answer, MasterHalf
from nnlo_opt.core.update_rules.staleness import StalenessPolicy, StalenessStatistics

#: int64 numbers before the vectors. Access them only while holding the lock of the first block
_VERSION, _N_SAMPLES, _N_APPLIED, _FULL_AT, _N_STEPS, _N_UPDATES, _STALENESS, _N_NUMBERS = range(8)


class Exchanged(NamedTuple):
    """Result of an update."""

    #: the version read back, and training samples of all workers behind it
    version: int
    n_samples: int
    #: True if the workers have trained all samples of the epoch: no worker begins another batch
    is_full: bool


class SharedWeights:
    """One process's view of the shared central weights of an assignment, at the master or a worker."""

    def __init__(
        self,
        memory: SharedMemory,
        rule: MasterHalf,
        sizes: tuple[int, int],
        n_workers: int,
        policy: StalenessPolicy = StalenessPolicy(),  # noqa: B008  (immutable)
        rates: LearningRates | None = None,
    ) -> None:
        """Use the weights in `memory`, and store the vectors of this process's `rule` there from now on.

        Args:
            sizes: number of weights, number of floats of model state.
            policy: for a worker; weights of updates by staleness.
            rates: for a worker; None if the learning rate does not change.
        """
        n_weights, n_state = sizes
        self._memory = memory
        self._rule = rule
        self._numbers = memory.bytes[: 8 * _N_NUMBERS].data.cast("q")
        #: True if there is only one worker, so that no lock is needed: the master is idle meanwhile
        self._is_alone = n_workers == 1
        # With many workers most should find a free block, even for a small model.
        self._first, *self._others = rule.blocks(n_weights, n_workers // 2)
        self._policy, self._rates = policy, rates
        #: staleness of the updates by this process since `take_applied`
        self._applied = StalenessStatistics()
        starts = _starts(n_weights, n_state, len(rule.vectors))[1:-1]
        central, *vectors = (memory.bytes[start:].view(np.float32)[: n_weights + n_state] for start in starts)
        #: central weights, then float model state (n_weights + n_state,)
        self.central = central
        #: the weights in it (n_weights,)
        self.weights = central[:n_weights]
        rule.live_in([vector[:n_weights] for vector in vectors])

    @classmethod
    def of_master(
        cls, block: Transport, rule: MasterHalf, central: np.ndarray, n_weights: int, n_workers: int
    ) -> "SharedWeights | None":
        """Return shared weights with the values of `central` (n_weights + n_state,) and the memory of `rule`.

        Returns None if the ends of `block` do not share memory.
        """
        n_state, before, n_steps = len(central) - n_weights, rule.vectors, rule.n_steps
        memory = block.share(_starts(n_weights, n_state, len(before))[-1])
        if memory is None:
            return None
        shared = cls(memory, rule, (n_weights, n_state), n_workers)
        shared.central[:] = central
        for vector, values in zip(rule.vectors, before, strict=True):
            vector[:] = values
        shared._numbers[_N_STEPS] = n_steps
        return shared

    @property
    def answers(self) -> Answer:
        """The kind of answer of the update rule."""
        return self._rule.answers

    @property
    def place(self) -> tuple[int, int]:
        """Handle for workers to join the memory."""
        return self._memory.place

    @property
    def version(self) -> int:
        """Number of updates of all workers, except dropped ones."""
        return self._numbers[_VERSION]

    @property
    def n_samples(self) -> int:
        """Number of training samples in all updates, over all epochs."""
        return self._numbers[_N_SAMPLES]

    @property
    def is_trained(self) -> bool:
        """True if the workers have trained all samples of the epoch without being recalled."""
        return 0 < self._numbers[_FULL_AT] <= self._numbers[_N_SAMPLES]

    def begin(self, version: int, n_samples: int, full_at: int, staleness: StalenessStatistics) -> None:
        """Let the workers train until they have `full_at` samples together. Called by the master, before they begin.

        `staleness`: staleness of all updates so far.
        """
        numbers = self._numbers
        numbers[_VERSION], numbers[_N_SAMPLES], numbers[_N_APPLIED] = version, n_samples, n_samples
        numbers[_FULL_AT] = full_at
        numbers[_N_UPDATES], numbers[_STALENESS] = staleness.n_updates, staleness.total

    def recall(self) -> None:
        """Make the next update of each worker its last. Called by the master."""
        self._numbers[_FULL_AT] = 0  # without the lock, which a hanging worker may hold

    def settle(self) -> MasterHalf:
        """Return the rule after all updates. Called by the master, and only while no worker trains."""
        self._rule.at_step(self._numbers[_N_STEPS])
        return self._rule

    def exchange(self, update: np.ndarray, answer: np.ndarray, n_samples: int, base_version: int) -> Exchanged:
        """Apply the `update` (n_weights,) of a worker, and write the vector to adopt into `answer` (n_weights,).

        `update` may be overwritten. Called by a worker.
        """
        numbers, rule, central = self._numbers, self._rule, self.weights
        rates = self._rates
        self._acquire(0)
        try:
            staleness = numbers[_VERSION] - base_version
            numbers[_N_UPDATES], numbers[_STALENESS] = numbers[_N_UPDATES] + 1, numbers[_STALENESS] + staleness
            rule.take_staleness(numbers[_STALENESS] / numbers[_N_UPDATES])
            weight = self._policy.weight(staleness)
            trained = numbers[_N_SAMPLES] = numbers[_N_SAMPLES] + n_samples
            if weight:
                numbers[_VERSION] += 1
                numbers[_N_STEPS] += 1
                rule.at_step(numbers[_N_STEPS])
                if rates is not None and rates.vary:
                    rule.scale_learning_rate(rates.factor(numbers[_N_APPLIED], trained))
                numbers[_N_APPLIED] = trained
            version, is_full = numbers[_VERSION], trained >= numbers[_FULL_AT]
            rule.exchange_block(central, update, answer, weight, self._first)
        finally:
            self._release(0)
        for lock, block in enumerate(self._others, 1):
            self._acquire(lock)
            try:
                rule.exchange_block(central, update, answer, weight, block)
            finally:
                self._release(lock)
        self._applied.record(base_version, base_version + staleness)
        if not weight:
            self._applied.drop()
        return Exchanged(version, trained, is_full)

    def take_applied(self) -> dict[str, int]:
        """Return the staleness of this process's updates since the last call, as JSON of `StalenessStatistics`."""
        applied, self._applied = self._applied, StalenessStatistics()
        return applied.to_json()

    def _acquire(self, lock: int) -> None:
        if not self._is_alone:
            self._memory.acquire(lock)

    def _release(self, lock: int) -> None:
        if not self._is_alone:
            self._memory.release(lock)


def _starts(n_weights: int, n_state: int, n_vectors: int) -> list[int]:
    """Return the offsets of the numbers, the central weights and the rule's vectors, and the end."""
    return offsets([8 * _N_NUMBERS] + [4 * (n_weights + n_state)] * (1 + n_vectors))
