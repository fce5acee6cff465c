"""Interface of update rules: their traits, and the halves that run on the ranks of a team.

A built-in rule is a module of this folder with a line in `core.update_rules.registry`. A worker sends its update to the
master or applies it itself in shared memory; either way the master's half moves the central weights. A sub-master first
combines the updates of its workers into one. All vectors are float32 (n_weights,).
"""
# ruff: noqa: B027  (most rules override only a few methods)

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError, ProtocolError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.base.vectors import aligned_empty
from nnlo_opt.core.update_rules.clipping import Clipping
from nnlo_opt.core.update_rules.layers import Layer, layers_within, whole_layers
from nnlo_opt.core.update_rules.optimizers import Averaging, BaseOptimizer, Optimizer, make_optimizer
from nnlo_opt.core.update_rules.vectors import FloatVector, block_size, blocks


class Answer(StrEnum):
    """What a worker receives after its update was applied; set `answers` of a half to one of these.

    >>> list(Answer)
    [<Answer.WEIGHTS: 'weights'>, <Answer.DIFFERENCE: 'difference'>, <Answer.NOTHING: 'nothing'>]
    """

    #: the central weights
    WEIGHTS = "weights"
    #: the update as the master's half has overwritten it
    DIFFERENCE = "difference"
    #: nothing: the worker keeps its weights
    NOTHING = "nothing"


class RuleOption(NamedTuple):
    """Numeric option of a single update rule.

    Args:
        name: Python name, with underscores; unique among all options.
        metavar: unit of the value, or its symbol.
        help: what the option does, without its default.
        example: a value as text, for the reference page.
        default: value if the option is not given; None if `shown` describes what applies then.
        shown: description of the default if its value is not enough.
        is_rate: the option is the learning rate of the steps; a model that trains itself ignores it.
    """

    name: str
    metavar: str
    help: str
    example: str
    default: float | None = None
    shown: str = ""
    is_rate: bool = False


class RuleOptions(Protocol):
    """Options that update rules read; `core.training.options.TrainingOptions` has them."""

    @property
    def optimizer(self) -> str: ...
    @property
    def learning_rate(self) -> float | None: ...
    @property
    def optimizer_params(self) -> Mapping[str, Any]: ...
    @property
    def sync_every(self) -> int: ...
    @property
    def worker_optimizer(self) -> str | None: ...
    @property
    def worker_optimizer_params(self) -> Mapping[str, Any]: ...
    @property
    def momentum_correction(self) -> bool: ...
    @property
    def weight_decay(self) -> float | None: ...
    @property
    def no_decay(self) -> str | None: ...
    @property
    def ema(self) -> float | None: ...
    @property
    def clips_mean(self) -> bool:
        """True if the master clips the mean of the workers' gradients; else each worker clips its own."""

    def clipping(self, layers: Sequence[Layer]) -> Clipping | None:
        """Return what clips a gradient of these layers; None if nothing does."""

    @property
    def of_rules(self) -> Mapping[str, Any]:
        """Name -> value of options of single rules."""

    @property
    def own_optimizer(self) -> str:
        """Optimizer that the model brings, and that its framework runs, in words; empty for `optimizer`."""

    @property
    def own(self) -> BaseOptimizer | None:
        """That optimizer, on a rank with the model."""


#: prefix of the names of `Half.memory` in the state of a half
_MEMORY = "memory."


class Half:
    """One half of an update rule on one rank, for one assignment; its state is `memory` and its optimizer, if any.

    >>> half = Half()
    >>> half.memory = {"velocity": np.zeros(2, np.float32)}
    >>> half.state()
    {'memory.velocity': array([0., 0.], dtype=float32)}
    """

    _optimizer: BaseOptimizer | None = None
    #: name -> vector that the next update depends on, float32 (n_weights,). Change these vectors only in place: they
    #: may be in memory shared with other ranks, and checkpoints contain them
    memory: Mapping[str, FloatVector] = MappingProxyType({})
    _layers: tuple[Layer, ...] = ()

    @property
    def layers(self) -> Sequence[Layer]:
        """Arrays of the model and their slices of the vectors; available from the first update on."""
        return self._layers

    def take_layers(self, layers: Iterable[Layer]) -> None:
        """Store the arrays of the model; called once, before any other method."""
        self._layers = tuple(layers)
        if self._optimizer is not None:
            self._optimizer.take_layers(self._layers)

    def scale_learning_rate(self, factor: float) -> None:
        """Set the learning rate to `factor` times that of the options; called whenever the schedule changes it."""
        if self._optimizer is not None:
            self._optimizer.scale_learning_rate(factor)

    def state(self) -> dict[str, Any]:
        """Return scalars and vectors for a checkpoint; called at an epoch fence. Empty if there is no state."""
        return {**self.memory_state(), **self.optimizer_state()}

    def memory_state(self) -> dict[str, Any]:
        """Return the part of `state` that is `memory`."""
        return {f"{_MEMORY}{name}": vector for name, vector in self.memory.items()}

    def optimizer_state(self) -> dict[str, Any]:
        """Return the part of `state` that is the optimizer's."""
        return {} if self._optimizer is None else self._optimizer.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore (copy) what `state` of the same rule returned; called when a fold resumes."""
        kept = {name.removeprefix(_MEMORY): value for name, value in state.items() if name.startswith(_MEMORY)}
        rest = {name: value for name, value in state.items() if not name.startswith(_MEMORY)}
        received, expected = ({name: np.shape(v) for name, v in vectors.items()} for vectors in (kept, self.memory))
        if received != expected or (rest and self._optimizer is None):
            names = sorted(received.items()), sorted(rest)
            raise ProtocolError(f"This half of the update rule has the state {expected}. Received: {names}.")
        for name, vector in self.memory.items():
            np.copyto(vector, kept[name])
        if self._optimizer is not None:
            self._optimizer.load_state(rest)


class MasterHalf(Half, ABC):
    """The half of an update rule at the master: applies updates to the central weights.

    >>> class Plain(MasterHalf):
    ...     def apply(self, central, update, weight):
    ...         central -= np.float32(0.5 * weight) * update
    >>> central = np.ones(3, np.float32)
    >>> Plain().apply(central, np.ones(3, np.float32), weight=1.0)
    >>> central
    array([0.5, 0.5, 0.5], dtype=float32)

    Raises:
        ProtocolError: for a synchronous round or a state that this half does not support.
    """

    answers: Answer = Answer.WEIGHTS
    #: True if `apply_round` clips the mean of the gradients, if the options say so
    clips: ClassVar[bool] = False
    #: True to cut weights in shared memory at layer boundaries, so that `apply` may use `layers`
    by_layer: ClassVar[bool] = False

    @property
    def layers(self) -> Sequence[Layer]:
        """Arrays of the model and their slices of `central`, which may be a block; for halves `by_layer`."""
        if not self.by_layer:
            raise ProtocolError(f"{type(self).__name__} must have `by_layer = True` to use `layers`.")
        return self._layers

    def blocks(self, n_weights: int, n_blocks: int) -> Iterator[slice]:
        """Return the slices for `exchange_block`; there should be at least about `n_blocks`."""
        if self.by_layer:
            return whole_layers(self._layers, block_size(n_weights, n_blocks))
        return blocks(n_weights, n_blocks)

    @property
    def n_steps(self) -> int:
        """Number of updates applied, if the next update depends on it; else 0."""
        return 0 if self._optimizer is None else self._optimizer.n_steps

    def at_step(self, n_steps: int) -> None:
        """Set the number of updates applied, or begun by `exchange_block`."""
        if self._optimizer is not None:
            self._optimizer.at_step(n_steps)

    @property
    def average(self) -> FloatVector | None:
        """Average of the central weights over the updates, for `--ema`; None if none is kept."""
        return None if self._optimizer is None else self._optimizer.average

    @property
    def vectors(self) -> Sequence[FloatVector]:
        """All vectors besides the central weights that the next update depends on, (n_weights,) each."""
        return [*self.memory.values(), *([] if self._optimizer is None else self._optimizer.slots)]

    def live_in(self, memory: Sequence[FloatVector]) -> None:
        """Use these vectors, with their contents, as `vectors` from now on."""
        n_own = len(self.memory)
        self.memory = dict(zip(self.memory, memory[:n_own], strict=True))
        if self._optimizer is not None:
            self._optimizer.live_in(memory[n_own:])

    def take_staleness(self, mean: float) -> None:
        """Set the mean staleness, in versions, of all updates up to and including the next one."""

    @abstractmethod
    def apply(self, central: FloatVector, update: FloatVector, weight: float) -> None:
        """Apply one update, scaled by its staleness weight, to `central` in place; called for each update of a worker.

        If `answers` is `DIFFERENCE`, write the answer into `update`. With shared memory this is called for one block at
        a time: all vectors, `memory` included, have the length of the block, unless `exchange_block` is overridden.
        """

    def exchange_block(
        self, central: FloatVector, update: FloatVector, answer: FloatVector, weight: float, block: slice
    ) -> None:
        """Apply update number `at_step` to one of the `blocks` of all weights, in shared memory.

        `update` may be overwritten. Write what the worker adopts into the block of `answer` (n_weights,). An update of
        weight 0 moves nothing.
        """
        if weight:
            with self._within(block):
                self.apply(central[block], update[block], weight)
        if answer is not central:
            answer[block] = (update if self.answers == Answer.DIFFERENCE else central)[block]

    @contextmanager
    def _within(self, block: slice) -> Iterator[None]:
        """Restrict `memory` and `layers` to a block."""
        memory, layers = self.memory, self._layers
        if memory:
            self.memory = {name: vector[block] for name, vector in memory.items()}
        if self.by_layer:
            self._layers = layers_within(layers, block)
        try:
            yield
        finally:
            self.memory, self._layers = memory, layers

    def apply_round(self, central: FloatVector, updates: Sequence[tuple[int, FloatVector]]) -> None:
        """Apply a synchronous round to `central` in place: (n_samples, update) of each worker, in order.

        Each `update` may be overwritten with the worker's answer.
        """
        raise ProtocolError(f"{type(self).__name__} has no synchronous rounds.")


class AveragingMaster(MasterHalf):
    """Master's half that moves the weights without an optimizer; subclasses call `_average` after each update."""

    _optimizer: Averaging | None = None

    def __init__(self, n_weights: int = 0, ema: float | None = None) -> None:
        """Keep the average of `n_weights` weights with the momentum `ema`; None for no average."""
        if ema is not None:
            self._optimizer = Averaging(n_weights, ema)

    def exchange_block(
        self, central: FloatVector, update: FloatVector, answer: FloatVector, weight: float, block: slice
    ) -> None:
        super().exchange_block(central, update, answer, weight, block)
        self._average(central, block)

    @contextmanager
    def _within(self, block: slice) -> Iterator[None]:
        # Here `apply` does not see all weights: `exchange_block` moves the average.
        optimizer, self._optimizer = self._optimizer, None
        try:
            with super()._within(block):
                yield
        finally:
            self._optimizer = optimizer

    def _average(self, central: FloatVector, block: slice | None = None) -> None:
        """Move the average towards all weights, or towards a block of them, in shared memory."""
        if self._optimizer is None:
            return
        if block is None:
            self._optimizer.apply(central, central)
            return
        with np.errstate(all="ignore"):
            self._optimizer.apply_block(central, central, block)


class PartedStep(Protocol):
    """Optimizer step in shared memory; each rank applies a part of it."""

    weights: FloatVector
    #: this rank's gradient
    gradient: FloatVector

    def apply(self) -> None:
        """Apply this rank's part of the step; return when all ranks have applied theirs.

        Collective: every rank that trains; a rank that does not call it blocks the others.
        """


Step = TypeVar("Step", bound=PartedStep)


class WorkerHalf(Half, ABC):
    """The half of an update rule at a worker; this base class makes no local steps.

    For each batch the worker computes `gradient` at `point` and calls `step`. At the end of a sync period it calls
    `finish`, sends the result, writes the answer into `answer` and calls `adopt`.

    >>> class Pushes(WorkerHalf):
    ...     def finish(self):
    ...         return self.gradient
    >>> half = Pushes(n_weights=2)
    >>> half.adopt(Answer.WEIGHTS, np.zeros(2, np.float32))
    >>> half.point()
    array([0., 0.], dtype=float32)

    Raises:
        ProtocolError: for a kind of answer, or a shared step, that this half does not support.
    """

    #: True to push an unfinished period at the epoch fence; False to continue it in the next epoch
    drains: bool = True

    def __init__(self, n_weights: int) -> None:
        #: the worker's weights, changed by answers and local steps. Change them in place only: they may be in shared
        #: memory
        self.weights = aligned_empty(n_weights)
        #: gradient of a batch, written by the worker before `step`
        self.gradient = aligned_empty(n_weights)
        #: buffer for an answer, written by the worker before `adopt`
        self.answer = self.weights

    def adopt(self, kind: Answer, answer: FloatVector) -> None:
        """Apply the answer to the last update: weights or a difference."""
        if kind != Answer.WEIGHTS:
            raise ProtocolError(f"Central weights are expected as the answer of the master. Received: {kind}.")
        if answer is not self.weights:
            np.copyto(self.weights, answer)

    def own(self, central: FloatVector) -> None:
        """Use the `central` weights (n_weights,) in shared memory as this worker's own, if no other rank moves them."""

    def live_in(self, memory: FloatVector) -> None:
        """Store the weights in `memory` (n_weights,) from now on."""
        np.copyto(memory, self.weights)
        self.answer = memory if self.answer is self.weights else self.answer
        self.weights = memory

    def share(self, make: Callable[[Optimizer], Step]) -> Step:
        """Apply only this rank's part of each step from now on: `make` takes the optimizer and returns the step."""
        raise ProtocolError(f"{type(self).__name__} does not step together with other ranks.")

    def point(self) -> FloatVector:
        """Return the weights at which to compute the next gradient."""
        return self.weights

    def step(self, n_samples: int) -> bool:
        """Process `gradient`, the mean over a batch; return True if `point` has changed."""
        return False

    @abstractmethod
    def finish(self) -> FloatVector:
        """End the sync period and return the update, which is valid until the next `step`."""


class SteppingWorker(WorkerHalf):
    """Worker's half that trains its own weights with its own optimizer, and pushes the weights."""

    drains = False

    def __init__(self, n_weights: int, optimizer: BaseOptimizer) -> None:
        super().__init__(n_weights)
        self.answer = aligned_empty(n_weights)
        self._optimizer: BaseOptimizer = optimizer

    def step(self, n_samples: int) -> bool:
        self._optimizer.apply(self.weights, self.gradient)
        return True

    def finish(self) -> FloatVector:
        return self.weights


class GroupHalf(Half, ABC):
    """The half of an update rule at a sub-master: combines the updates of its workers into one.

    Workers within a group are synchronous; between groups `--synchronous` decides, like between workers without
    sub-masters. (Kurth et al., "Deep Learning at 15PF", arXiv:1708.05256, train such groups with a parameter server.)

    >>> class Sums(GroupHalf):
    ...     def combine(self, updates):
    ...         return np.sum([update for n_samples, update in updates], axis=0)
    >>> Sums().combine([(10, np.ones(2, np.float32)), (20, np.ones(2, np.float32))])
    array([2., 2.], dtype=float32)
    """

    #: what the workers of the group adopt: the weights from the top master, or their updates as `combine` has
    #: overwritten them
    answers: Answer = Answer.WEIGHTS

    @abstractmethod
    def combine(self, updates: Sequence[tuple[int, FloatVector]]) -> FloatVector:
        """Return the group's update, valid until the next one, from (n_samples, update) of each worker, in order.

        Each `update` may be overwritten with the worker's answer.
        """

    def adopt(self, kind: Answer, answer: FloatVector) -> None:
        """Apply the top master's answer to the last update, or the initial weights."""


class UpdateRule(ABC):
    """Base class of update rules: options, traits, and factories of the halves.

    >>> from nnlo_opt.core.training.options import TrainingOptions
    >>> from nnlo_opt.core.update_rules.downpour import Downpour
    >>> class Clipped(Downpour):
    ...     def worker_half(self, options, n_weights):
    ...         half = super().worker_half(options, n_weights)
    ...         finish = half.finish
    ...         half.finish = lambda: np.clip(finish(), -1, 1)
    ...         return half
    >>> half = Clipped().worker_half(TrainingOptions(), n_weights=2)
    >>> half.gradient[:] = [0.5, 3.0]
    >>> half.step(n_samples=10), half.finish()
    (False, array([0.5, 1. ], dtype=float32))

    Raises:
        ConfigurationError: by the methods `check...`, if the rule does not support the options.
        ProtocolError: by `group_half`, if the rule has no sub-masters.
    """

    #: name of the rule in `--mode`
    name: ClassVar[str]
    #: options that only this rule has
    options: ClassVar[tuple[RuleOption, ...]] = ()
    #: True if `--optimizer` and `--learning-rate` have an effect; used only if `core.update_rules.effect` cannot
    #: measure it
    takes_optimizer: ClassVar[bool] = True
    #: True if workers always take local steps, with `--worker-optimizer` if given
    steps_at_workers: ClassVar[bool] = False
    #: True if all workers take every step together, along the mean of their gradients: they wait for each other, the
    #: master's rank trains, too, and there are neither sub-masters nor worker groups. Their optimizers have the same
    #: state, of which checkpoints have one copy; `memory` is each worker's own
    averages_every_batch: ClassVar[bool] = False
    #: True if each rank may apply such a step to a part of the weights only, with the optimizer that the worker's half
    #: shares
    parts_steps: ClassVar[bool] = False
    #: True if workers may train several batches between two updates
    makes_local_steps: ClassVar[bool] = True
    #: True if the rule supports `--synchronous`
    may_be_synchronous: ClassVar[bool] = True
    #: True if the rule supports `--staleness`
    weighs_staleness: ClassVar[bool] = False
    #: True if a synchronous round is a step along the mean of the workers' gradients, which the master's half `clips`
    averages_gradients: ClassVar[bool] = False
    #: True if the master's half has an `average` with `--ema`
    keeps_average: ClassVar[bool] = False
    #: True if the rule supports `--momentum-correction` with SGD
    corrects_momentum: ClassVar[bool] = False

    @abstractmethod
    def master_half(self, options: RuleOptions, n_weights: int, n_workers: int) -> MasterHalf:
        """Return the half for a master of `n_workers` workers; called once per assignment.

        A sub-master counts as one worker.
        """

    @abstractmethod
    def worker_half(self, options: RuleOptions, n_weights: int) -> WorkerHalf:
        """Return the half for a worker; called once per assignment on each worker."""

    def group_half(self, options: RuleOptions, n_weights: int, n_workers: int) -> GroupHalf:
        """Return the half for a sub-master of `n_workers` workers; called once per assignment."""
        raise ProtocolError(f"`{spelled('mode', self.name)}` has no sub-masters.")

    def optimizer(self, options: RuleOptions, n_weights: int) -> Optimizer:
        """Return the optimizer of the options, which `--learning-rate` applies to."""
        optimizer = make_optimizer(options.optimizer, n_weights, options.learning_rate, options.optimizer_params)
        return optimizer.beside(options.weight_decay, options.no_decay, options.ema)

    def stepping(self, options: RuleOptions, n_weights: int) -> BaseOptimizer:
        """Return the optimizer of whole steps: that of the model if its framework runs it, else `optimizer`."""
        return self.optimizer(options, n_weights) if options.own is None else options.own

    def base_learning_rate(self, options: RuleOptions) -> float:
        """Return the initial learning rate, before schedules and callbacks."""
        return self.stepping(options, 1).first_learning_rate

    def takes_own(self, options: RuleOptions, n_workers: int) -> bool:
        """Return True if each of `n_workers` takes whole steps with `optimizer`, so that its framework can run it."""
        return False

    def check(self, options: RuleOptions) -> None:
        """Raise ConfigurationError for options that the rule does not support; called before anything is trained."""

    def check_groups(self, n_masters: int, n_processes: int) -> None:
        """Raise ConfigurationError if the rule does not support sub-masters, or worker groups of several ranks."""
        if n_masters > 1 and type(self).group_half is UpdateRule.group_half:
            raise ConfigurationError(
                f"`{spelled('n_masters')}` must be 1 with `{spelled('mode', self.name)}`, which has no `group_half`. "
                f"Received: {n_masters}; leave it out, or choose another mode."
            )

    def check_workers(self, own: Mapping[str, Any], n_workers: int) -> None:
        """Raise ConfigurationError if `n_workers` per master are too few for these values of the rule's `options`."""

    def least_workers(self, own: Mapping[str, Any]) -> float:
        """Return the fewest workers per master for these values of the rule's `options`."""
        return 1.0
