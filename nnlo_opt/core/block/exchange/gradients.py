"""Gradients of a step, from a worker's own batch or averaged over the batches of several ranks.

Averaging is one collective sum per step: synchronous SGD with averaged gradients, as in Sergeev and Del Balso,
"Horovod" (arXiv:1802.05799), section 3. Every rank contributes n_i g_i, the gradient of its n_i samples; its flags for
the other ranks follow in the same vector. A rank that fails, has to stop, or has no batch left in this pass still takes
part; otherwise the others would hang.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from nnlo_opt.core.base.errors import ProtocolError, TrialError
from nnlo_opt.core.base.pulse import PULSE, SLOW, TOGETHER
from nnlo_opt.core.base.timeline import NO_TIMELINE, Timeline
from nnlo_opt.core.base.vectors import aligned, aligned_empty
from nnlo_opt.core.block.answers import PASSED_ON, failures_to
from nnlo_opt.core.block.exchange.shared_step import Averaging
from nnlo_opt.core.block.task import FoldTask
from nnlo_opt.core.comm.transport import Collective
from nnlo_opt.core.training.history import Metrics, plain_states, sum_of_states
from nnlo_opt.core.update_rules.rule import WorkerHalf

#: numbers sent with a gradient: samples, failed ranks, ranks that request the end of the epoch; and sums of metrics
N_FLAGS, N_SUMS = 3, 61


class Step(NamedTuple):
    """Metrics of one step of `OwnBatches.step`, which writes the gradient."""

    #: metrics of the samples that count for this worker
    metrics: Metrics
    #: number of samples that the gradient is averaged over
    n_samples: int
    #: True if all samples of the shard have been seen equally often
    end_of_pass: bool = False
    #: True if another rank has failed and reports it
    has_failed: bool = False


class OwnBatches:
    """The gradients of a worker's own batches."""

    def __init__(self, task: FoldTask, gradient: np.ndarray, timeline: Timeline = NO_TIMELINE) -> None:
        """Write the gradient of every step to `gradient`, float32 (n_weights,)."""
        self._timeline = timeline
        self._task = task
        self._gradient = gradient
        self._wants_end = False
        #: True after the first batch, which a framework may have to compile
        self._has_begun = False
        #: failure of this rank outside of a step
        self._failure: BaseException | None = None
        #: context for work outside of a step: a failure is raised by the next step, after the other ranks have been
        #: told
        self.fails_in_next_step = failures_to(self._fail)
        #: states of metrics over the samples since `take_states`; `step` does not return them
        self.states: Mapping[str, ArrayLike] = {}

    def _fail(self, error: BaseException) -> None:
        self._failure = error

    def end_pass(self) -> None:
        """End the pass with the next step, for all ranks together."""
        self._wants_end = True

    def at(self, weights: np.ndarray) -> None:
        """Compute the next gradients at `weights` (n_weights,). Do not change `weights` until the next call."""
        self._task.adapter.borrow_weights(weights)

    def share_weights(self, rule: WorkerHalf) -> list[int]:
        """Store the weights of `rule` in memory shared with other ranks; return its handle, [] if it is not needed."""
        return []

    def average_by(self, averaging: Averaging) -> None:
        """Use this averaging from now on; call between two steps."""
        raise ProtocolError(f"{type(self).__name__} does not average gradients.")

    def step(self) -> Step:
        """Compute the next gradient; raises a failure on this rank."""
        if self._failure is not None:
            raise self._failure
        metrics, end_of_pass = self._compute(self._gradient)
        return Step(metrics, metrics.n_samples, end_of_pass)

    def _compute(self, gradient: np.ndarray) -> tuple[Metrics, bool]:
        """Compute the gradient of this rank's next batch; return its metrics, and True if a pass ends.

        Raises:
            TrialError: the loss is not finite.
        """
        if not self._has_begun:
            self._has_begun = True
            PULSE.expect(SLOW, "is in the first batch, which compiles the model")
        with self._timeline.span("batch", "data"):
            batch = self._task.stream.next()
        with self._timeline.span("gradient"):
            metrics = self._task.adapter.gradient(batch.x, batch.y, gradient, batch.weights)
        if not math.isfinite(metrics.sums["loss"]):
            raise TrialError(f"the loss is {metrics.sums['loss']} (a non-finite loss): lower the learning rate")
        if metrics.states:
            self.states = sum_of_states(self.states, metrics.states)
            metrics = Metrics(metrics.n_samples, metrics.sums)
        return metrics, batch.end_of_pass

    def take_states(self) -> dict[str, list[float]]:
        """Return the states of metrics over the samples since the last call, as plain data."""
        states, self.states = self.states, {}
        return plain_states(states)

    def position(self) -> dict[str, Any]:
        """Return data position and integer state of the model, as plain data."""
        sweep, offset = self._task.stream.position
        return {"pass": sweep, "offset": offset, "discrete": self._task.adapter.discrete_state()}

    def seek(self, position: dict[str, Any]) -> None:
        """Continue from a position: the same steps follow as the first time."""
        self._task.stream.seek(position["pass"], position["offset"])
        if position.get("discrete"):
            self._task.adapter.load_discrete_state(position["discrete"])


class CommonBatches(OwnBatches):
    """The gradient of the union of the batches of all ranks of a group.

    Collective: every rank of the group must call each `step`; a missing rank blocks the others.
    """

    def __init__(
        self,
        task: FoldTask,
        gradient: np.ndarray,
        together: Collective | None,
        n_ranks: int,
        timeline: Timeline = NO_TIMELINE,
        *,
        counts_all: bool = False,
    ) -> None:
        """Compute gradients together with the ranks of the group `together`.

        Args:
            gradient: float32 (n_weights,), written by every step.
            together: None for a group of one rank.
            n_ranks: number of ranks that share all training samples.
            counts_all: True if the metrics of all ranks of the group count for this worker, not only its own.
        """
        super().__init__(task, gradient, timeline)
        self._counts_all = counts_all
        self._averaging: Averaging = _Sum(gradient, together)
        # The largest shard decides; a rank with a smaller shard may finish one step earlier.
        by_samples = math.ceil(math.ceil(task.n_train / n_ranks) / task.options.batch)
        self._steps_a_pass = task.steps_a_pass or by_samples
        #: steps, and trained samples of this rank, in the current pass
        self._n_steps = self._n_samples = 0
        #: names of the metrics, in the order in which their sums are sent
        self._names: list[str] = []

    def step(self) -> Step:
        own, of_all = self._exchange()
        n_samples, has_failed, wants_end, *sums = of_all
        self._n_steps += 1
        is_through = self._n_steps >= self._steps_a_pass
        if is_through:
            self._n_steps = self._n_samples = 0
        # On a requested end the pass is not over, and may be resumed from the position.
        end_of_pass = is_through or bool(wants_end)
        if self._counts_all:
            own = Metrics(int(n_samples), dict(zip(self._names, sums, strict=True)))
        return Step(own, int(n_samples), end_of_pass, bool(has_failed))

    def _exchange(self) -> tuple[Metrics, Sequence[float]]:
        """Compute and average; return own metrics, and the sums over all ranks of the numbers sent with gradients."""
        own, failure = Metrics(), self._failure
        try:
            if failure is None and self._n_samples < self._task.n_shard:
                own, _ = self._compute(self._averaging.gradient)
                if self._counts_all and len(own.sums) > N_SUMS:
                    raise TrialError(
                        f"ranks that average gradients share at most {N_SUMS} figures, not {len(own.sums)}"
                    )
        except PASSED_ON:
            raise
        except BaseException as error:
            failure, own = error, Metrics()
        numbers: list[float] = [own.n_samples, failure is not None, self._wants_end]
        if self._counts_all:
            if own.n_samples and not self._names:
                self._names = sorted(own.sums, key=lambda name: (name != "loss", name))  # as for a single rank
            numbers += [own.sums.get(name, 0.0) for name in self._names]
        PULSE.expect(TOGETHER)
        with self._timeline.span("allreduce", "message"):
            of_all = self._averaging.average(numbers)
        if failure is not None:
            raise failure
        self._n_samples += own.n_samples
        return own, of_all

    def average_by(self, averaging: Averaging) -> None:
        self._averaging = averaging

    def position(self) -> dict[str, Any]:
        return {**super().position(), "steps": self._n_steps, "samples": self._n_samples}

    def seek(self, position: dict[str, Any]) -> None:
        super().seek(position)
        self._n_steps, self._n_samples = position.get("steps", 0), position.get("samples", 0)


class _Sum:
    """Averaging by one collective sum of gradients and the numbers sent with them."""

    def __init__(self, gradient: np.ndarray, together: Collective | None) -> None:
        self.gradient = gradient
        self._together = together
        self._tail = aligned(gradient.nbytes) // gradient.itemsize
        self._vector = aligned_empty(self._tail + N_FLAGS + N_SUMS)
        self._vector[:] = 0

    def average(self, numbers: Sequence[float]) -> Sequence[float]:
        mine, tail = self._vector[: len(self.gradient)], self._vector[self._tail :]
        if numbers[0]:
            np.multiply(self.gradient, numbers[0], out=mine)
        else:
            mine[:] = 0
        tail[: len(numbers)], tail[len(numbers) :] = numbers, 0
        if self._together is not None:
            self._together.sum_in_place(self._vector)
        if tail[0]:
            np.multiply(mine, 1 / tail[0], out=self.gradient)
        return tail[: len(numbers)].tolist()
