"""Where the gradient of a step comes from: a worker's own batch, or the batches of several ranks together.

Together means one collective sum a step: synchronous SGD with averaged gradients, as in Sergeev and Del Balso,
"Horovod" (arXiv:1802.05799), section 3. Every rank adds n_i g_i, the gradient of its n_i samples, and what it has to
say to the others travels behind it in the same vector: a rank that fails, is told to stop, or has no batch left in this
pass still takes part, so that none waits for it.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from nnlo_opt.block.exchange.shared_step import Averaging
from nnlo_opt.block.task import FoldTask
from nnlo_opt.comm.transport import Collective
from nnlo_opt.errors import TrialError
from nnlo_opt.models.adapter import Metrics
from nnlo_opt.runtime.pulse import PULSE, SLOW, TOGETHER
from nnlo_opt.runtime.timeline import NO_TIMELINE, Timeline
from nnlo_opt.vectors import aligned, aligned_empty

#: numbers that go with a gradient: samples, ranks that failed, ranks that want the epoch to end; and sums of figures
N_FLAGS, N_SUMS = 3, 61


class Step(NamedTuple):
    """One gradient, written where it was asked for."""

    #: of the samples that count for this worker
    metrics: Metrics
    #: samples that the gradient is the mean over
    n_samples: int
    #: every sample of the shard has been seen as often as each other
    end_of_pass: bool = False
    #: another rank has failed, and says so by itself
    has_failed: bool = False


class Gradients(Protocol):
    """What a worker asks for the gradients of an assignment."""

    #: set by the master's Halt: the pass ends with the next step, for all ranks together
    wants_end: bool
    #: what has gone wrong on this rank outside of a step: the next step raises it, when the other ranks know
    failure: BaseException | None

    def step(self) -> Step:
        """Compute the next gradient at the adapter's weights. Raises what fails it on this rank."""
        ...

    def position(self) -> dict[str, Any]:
        """Where `seek` leads back to, plain data."""
        ...

    def seek(self, position: dict[str, Any]) -> None:
        """Go to a position: the steps that follow are those that followed it the first time."""
        ...


class OwnBatches:
    """The gradients of a worker's own batches."""

    def __init__(self, task: FoldTask, gradient: np.ndarray, timeline: Timeline = NO_TIMELINE) -> None:
        """`gradient` (n_weights,) float32 is where every step writes it."""
        self._timeline = timeline
        self._task = task
        self._gradient = gradient
        self.wants_end = False
        self.failure: BaseException | None = None

    def step(self) -> Step:
        if self.failure is not None:
            raise self.failure
        metrics, end_of_pass = compute(self._task, self._gradient, self._timeline)
        return Step(metrics, metrics.n_samples, end_of_pass)

    def position(self) -> dict[str, Any]:
        sweep, offset = self._task.stream.position
        return {"pass": sweep, "offset": offset}

    def seek(self, position: dict[str, Any]) -> None:
        self._task.stream.seek(position["pass"], position["offset"])


class CommonBatches:
    """The gradient of the union of the batches of all ranks of a group; every step is collective over it."""

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
        """`together` is the group that averages (None: of one); `n_ranks` share all training samples.

        `counts_all`: whether the figures of all ranks of the group count for this worker, or its own.
        """
        self._timeline = timeline
        self._task = task
        self._counts_all = counts_all
        #: how the gradients become one; may be exchanged for another way before a step
        self.averaging: Averaging = _Sum(gradient, together)
        # The largest shard decides; a rank whose shard is smaller may be through one step earlier.
        by_samples = math.ceil(math.ceil(task.n_train / n_ranks) / task.options.batch)
        self._steps_a_pass = task.steps_a_pass or by_samples
        #: steps made, and samples of this rank trained, in the pass under way
        self._n_steps = self._n_samples = 0
        self.wants_end = False
        self.failure: BaseException | None = None
        #: names of the figures, in the order in which their sums travel
        self._names: list[str] = []

    def step(self) -> Step:
        own, of_all = self._exchange()
        n_samples, has_failed, wants_end, *sums = of_all
        self._n_steps += 1
        is_through = self._n_steps >= self._steps_a_pass
        if is_through:
            self._n_steps = self._n_samples = 0
        # Where the end is wanted the pass is not over, and may be gone on with from the position.
        end_of_pass = is_through or bool(wants_end)
        if self._counts_all:
            own = Metrics(int(n_samples), dict(zip(self._names, sums, strict=True)))
        return Step(own, int(n_samples), end_of_pass, bool(has_failed))

    def _exchange(self) -> tuple[Metrics, Sequence[float]]:
        """Compute and average; -> (own metrics, the numbers that go with the gradients, summed over all ranks)."""
        own, failure = Metrics(), self.failure
        try:
            if failure is None and self._n_samples < self._task.n_shard:
                own, _ = compute(self._task, self.averaging.gradient, self._timeline)
                if self._counts_all and len(own.sums) > N_SUMS:
                    raise TrialError(
                        f"ranks that average gradients share at most {N_SUMS} figures, not {len(own.sums)}"
                    )
        except (Exception, SystemExit) as error:
            failure, own = error, Metrics()
        numbers: list[float] = [own.n_samples, failure is not None, self.wants_end]
        if self._counts_all:
            if own.n_samples and not self._names:
                self._names = sorted(own.sums)
            numbers += [own.sums.get(name, 0.0) for name in self._names]
        PULSE.expect(TOGETHER)
        with self._timeline.span("allreduce", "message"):
            of_all = self.averaging.average(numbers)
        if failure is not None:
            raise failure
        self._n_samples += own.n_samples
        return own, of_all

    def position(self) -> dict[str, Any]:
        sweep, offset = self._task.stream.position
        return {"pass": sweep, "offset": offset, "steps": self._n_steps, "samples": self._n_samples}

    def seek(self, position: dict[str, Any]) -> None:
        self._task.stream.seek(position["pass"], position["offset"])
        self._n_steps, self._n_samples = position.get("steps", 0), position.get("samples", 0)


class _Sum:
    """Averaging by one sum of all gradients, and of what goes with them, over the whole group."""

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


def compute(task: FoldTask, gradient: np.ndarray, timeline: Timeline) -> tuple[Metrics, bool]:
    """The gradient of this rank's next batch, and whether a pass ends; TrialError unless the loss is finite."""
    if not task.has_begun:
        task.has_begun = True
        PULSE.expect(SLOW)
    with timeline.span("batch", "data"):
        batch = task.stream.next()
    with timeline.span("gradient"):
        metrics = task.adapter.gradient(batch.x, batch.y, gradient, batch.weights)
    if not math.isfinite(metrics.sums["loss"]):
        raise TrialError(f"the loss is {metrics.sums['loss']} (a non-finite loss): lower the learning rate")
    return metrics, batch.end_of_pass
