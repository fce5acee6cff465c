"""An update rule as the ranks of a team see it: its traits, its halves.

A rule is one module of this folder, with a line in `core.update_rules.registry`. A worker hands its update to the
master, or applies it itself in shared memory; either way the master's half moves the central weights. A sub-master
first makes one update of the updates of its workers. All vectors are float32 (n_weights,).
"""
# ruff: noqa: B027  (what most rules leave alone is empty here)

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
from nnlo_opt.core.update_rules.layers import Layer, layers_within, whole_layers
from nnlo_opt.core.update_rules.optimizers import Optimizer, make_optimizer
from nnlo_opt.core.update_rules.vectors import FloatVector, block_size, blocks


class Answer(StrEnum):
    """Kinds of vectors that a worker adopts when its update has been applied.

    >>> MasterHalf.answers is Answer.WEIGHTS
    True
    """

    #: the central weights
    WEIGHTS = "weights"
    #: the vector that the master's half has made of the update
    DIFFERENCE = "difference"
    #: nothing, as the worker keeps the weights it has
    NOTHING = "nothing"


class RuleOption(NamedTuple):
    """An option that one update rule alone has; its values are numbers.

    Args:
        name: as in Python, with underscores; unique among all options.
        metavar: unit of the value, or its symbol.
        help: what the option does, without its default.
        example: a value as text, for the reference page.
        default: value if the option is not given; None if `shown` says what holds then.
        shown: the default in words if its value alone does not say it.
        is_rate: the option is the learning rate of the steps; a model that makes its own steps has another.
    """

    name: str
    metavar: str
    help: str
    example: str
    default: float | None = None
    shown: str = ""
    is_rate: bool = False


class RuleOptions(Protocol):
    """The options that update rules read, as `core.training.options.TrainingOptions` has them."""

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
    def of_rules(self) -> Mapping[str, Any]:
        """Values of the options that single rules have, by name."""


#: before the names of `Half.memory` in the state of a half
_MEMORY = "memory."


class Half:
    """One half of an update rule, for one assignment. It remembers `memory`, and its optimizer, if it has one.

    >>> half = Half()
    >>> half.memory = {"velocity": np.zeros(2, np.float32)}
    >>> half.state()
    {'memory.velocity': array([0., 0.], dtype=float32)}
    """

    _optimizer: Optimizer | None = None
    #: vectors that the next update depends on, float32 (n_weights,) each, by name; to be changed in place
    memory: Mapping[str, FloatVector] = MappingProxyType({})
    _layers: tuple[Layer, ...] = ()

    @property
    def layers(self) -> Sequence[Layer]:
        """The arrays of the model and their places in the vectors, known before the first update."""
        return self._layers

    def take_layers(self, layers: Iterable[Layer]) -> None:
        """Take note of the arrays of the model; called once, before anything else."""
        self._layers = tuple(layers)

    def scale_learning_rate(self, factor: float) -> None:
        """Take `factor` times the learning rate of the options, if this half makes steps."""
        if self._optimizer is not None:
            self._optimizer.scale_learning_rate(factor)

    def state(self) -> dict[str, Any]:
        """Return scalars and vectors that exist nowhere else, for a checkpoint at a fence; empty if there are none."""
        memory = {f"{_MEMORY}{name}": vector for name, vector in self.memory.items()}
        return memory if self._optimizer is None else {**memory, **self._optimizer.state()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take over (copy) the return value of `state` of the same rule."""
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
    """An update rule at the master.

    >>> class Plain(MasterHalf):
    ...     def apply(self, central, update, weight):
    ...         central -= np.float32(0.5 * weight) * update
    >>> central = np.ones(3, np.float32)
    >>> Plain().apply(central, np.ones(3, np.float32), weight=1.0)
    >>> central
    array([0.5, 0.5, 0.5], dtype=float32)

    Raises:
        ProtocolError: of a round, or of a state, that this half does not have.
    """

    answers: Answer = Answer.WEIGHTS
    #: blocks of the weights in shared memory are whole layers, so that `apply` may use `layers`
    by_layer: ClassVar[bool] = False

    @property
    def layers(self) -> Sequence[Layer]:
        """The arrays of the model and their places in `central`, also if this is a block; for halves `by_layer`."""
        if not self.by_layer:
            raise ProtocolError(f"{type(self).__name__} must have `by_layer = True` to use `layers`.")
        return self._layers

    def blocks(self, n_weights: int, n_blocks: int) -> Iterator[slice]:
        """Return the slices that `exchange_block` is given one by one; about `n_blocks` are wanted at least."""
        if self.by_layer:
            return whole_layers(self._layers, block_size(n_weights, n_blocks))
        return blocks(n_weights, n_blocks)

    @property
    def n_steps(self) -> int:
        """Updates applied so far, if the next update depends on that number; else 0."""
        return 0 if self._optimizer is None else self._optimizer.n_steps

    def at_step(self, n_steps: int) -> None:
        """Have `n_steps` updates been applied, or begun by `exchange_block`."""
        if self._optimizer is not None:
            self._optimizer.at_step(n_steps)

    @property
    def vectors(self) -> Sequence[FloatVector]:
        """Vectors that the next update depends on beside the central weights, (n_weights,) each."""
        return [*self.memory.values(), *([] if self._optimizer is None else self._optimizer.slots)]

    def live_in(self, memory: Sequence[FloatVector]) -> None:
        """Take these vectors for `vectors` from now on, with what they hold."""
        n_own = len(self.memory)
        self.memory = dict(zip(self.memory, memory[:n_own], strict=True))
        if self._optimizer is not None:
            self._optimizer.live_in(memory[n_own:])

    def take_staleness(self, mean: float) -> None:
        """Take the mean staleness of all updates so far, the next one included, in versions."""

    @abstractmethod
    def apply(self, central: FloatVector, update: FloatVector, weight: float) -> None:
        """Move `central` by one update of staleness weight `weight`; `update` may become the answer, in place.

        In shared memory all vectors, `memory` included, are those of a block, unless `exchange_block` is overridden.
        """

    def exchange_block(
        self, central: FloatVector, update: FloatVector, answer: FloatVector, weight: float, block: slice
    ) -> None:
        """Do the part of `apply` for one of the `blocks` of all weights, as part of update number `at_step`.

        `update` may be spoilt. The block of `answer` (n_weights,) receives what the worker is to adopt. An update of
        weight 0 moves nothing.
        """
        if weight:
            with self._within(block):
                self.apply(central[block], update[block], weight)
        if answer is not central:
            answer[block] = (update if self.answers == Answer.DIFFERENCE else central)[block]

    @contextmanager
    def _within(self, block: slice) -> Iterator[None]:
        """Have `memory` and `layers` be those of a block."""
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
        """Move `central` by the updates of a synchronous round, (n_samples, update) of each worker in order.

        Each `update` may become the answer, in place.
        """
        raise ProtocolError(f"{type(self).__name__} has no synchronous rounds.")


class PartedStep(Protocol):
    """A step of the optimizer in memory that all ranks see; each rank makes a part of it."""

    weights: FloatVector
    #: this rank's gradient
    gradient: FloatVector

    def apply(self) -> None:
        """Make this rank's part of the step; return when all parts are made."""


Step = TypeVar("Step", bound=PartedStep)


class WorkerHalf(Half, ABC):
    """An update rule at a worker; here without local steps.

    >>> class Pushes(WorkerHalf):
    ...     def finish(self):
    ...         return self.gradient
    >>> half = Pushes(n_weights=2)
    >>> half.adopt(Answer.WEIGHTS, np.zeros(2, np.float32))
    >>> half.point()
    array([0., 0.], dtype=float32)

    Raises:
        ProtocolError: of an answer or of a common step that this half does not take.
    """

    #: True if an unfinished period is pushed at the fence of an epoch; else the period continues behind the fence
    drains: bool = True

    def __init__(self, n_weights: int) -> None:
        #: the worker's weights; answers and local steps move them
        self.weights = aligned_empty(n_weights)
        #: the gradient of a batch, to be written before `step`
        self.gradient = aligned_empty(n_weights)
        #: room for an answer, to be written before `adopt`
        self.answer = self.weights

    def adopt(self, kind: Answer, answer: FloatVector) -> None:
        """Take in the weights or the difference that came back for the last update."""
        if kind != Answer.WEIGHTS:
            raise ProtocolError(f"Central weights are expected as the answer of the master. Received: {kind}.")
        if answer is not self.weights:
            np.copyto(self.weights, answer)

    def own(self, central: FloatVector) -> None:
        """Use the `central` weights (n_weights,) in shared memory for this worker's own, if nobody else moves them."""

    def live_in(self, memory: FloatVector) -> None:
        """Keep the weights in `memory` (n_weights,) from now on."""
        np.copyto(memory, self.weights)
        self.answer = memory if self.answer is self.weights else self.answer
        self.weights = memory

    def share(self, make: Callable[[Optimizer], Step]) -> Step:
        """Make a part of each step from now on, as the return value of `make` does; it takes over the optimizer."""
        raise ProtocolError(f"{type(self).__name__} makes no steps together with other ranks.")

    def point(self) -> FloatVector:
        """Return the weights at which the next gradient is wanted."""
        return self.weights

    def step(self, n_samples: int) -> bool:
        """Take in `gradient`, the mean over a batch; return True if `point` has moved."""
        return False

    @abstractmethod
    def finish(self) -> FloatVector:
        """End the period and return the update, which is valid until the next `step`."""


class SteppingWorker(WorkerHalf):
    """A worker that trains on its own weights with an optimizer of its own, and pushes the weights."""

    drains = False

    def __init__(self, n_weights: int, optimizer: Optimizer) -> None:
        super().__init__(n_weights)
        self.answer = aligned_empty(n_weights)
        self._optimizer: Optimizer = optimizer

    def step(self, n_samples: int) -> bool:
        self._optimizer.apply(self.weights, self.gradient)
        return True

    def finish(self) -> FloatVector:
        return self.weights


class GroupHalf(Half, ABC):
    """An update rule at a sub-master.

    Inside a group the workers are synchronous; between groups `--synchronous` decides, as it does between workers
    without sub-masters. (Kurth et al., "Deep Learning at 15PF", arXiv:1708.05256, train such groups with a parameter
    server.)

    >>> class Sums(GroupHalf):
    ...     def combine(self, updates):
    ...         return np.sum([update for n_samples, update in updates], axis=0)
    >>> Sums().combine([(10, np.ones(2, np.float32)), (20, np.ones(2, np.float32))])
    array([2., 2.], dtype=float32)
    """

    #: what the workers of the group adopt: the weights that come from the top master, or what `combine` has made of
    #: their updates
    answers: Answer = Answer.WEIGHTS

    @abstractmethod
    def combine(self, updates: Sequence[tuple[int, FloatVector]]) -> FloatVector:
        """Return the update of the group, valid until the next one, from (n_samples, update) of each worker in order.

        Each `update` may become the answer to its worker, in place.
        """

    def adopt(self, kind: Answer, answer: FloatVector) -> None:
        """Take in the top master's answer to the last update, or the weights to begin with."""


class UpdateRule(ABC):
    """One update rule: its options, what it can do, and the makers of its halves.

    >>> from nnlo_opt.core.update_rules.downpour import Downpour
    >>> class Clipped(Downpour):
    ...     def worker_half(self, options, n_weights):
    ...         half = super().worker_half(options, n_weights)
    ...         finish = half.finish
    ...         half.finish = lambda: np.clip(finish(), -1, 1)
    ...         return half
    >>> Clipped().weighs_staleness
    True

    Raises:
        ConfigurationError: by the methods `check...`, if options contradict the rule.
        ProtocolError: by `group_half`, if the rule has no sub-masters.
    """

    #: value of `--mode`
    name: ClassVar[str]
    #: options of this rule alone
    options: ClassVar[tuple[RuleOption, ...]] = ()
    #: `--optimizer` makes the steps, at `--learning-rate`. `core.update_rules.effect` measures what a rule takes; this
    #: holds if it cannot
    takes_optimizer: ClassVar[bool] = True
    #: workers always make steps of their own, by `--worker-optimizer` if it is given
    steps_at_workers: ClassVar[bool] = False
    #: all workers make every step together, along the mean of their gradients: they wait for each other, the master's
    #: rank trains too, and there are neither sub-masters nor worker groups
    averages_every_batch: ClassVar[bool] = False
    #: of these steps each rank may make a part, some of the weights, by the optimizer that a worker's half shares
    parts_steps: ClassVar[bool] = False
    #: workers may train several batches between two updates
    makes_local_steps: ClassVar[bool] = True
    #: workers may be made to wait for each other
    may_be_synchronous: ClassVar[bool] = True
    #: the master may weigh an update by its staleness
    weighs_staleness: ClassVar[bool] = False
    #: momentum may be corrected for staleness, if the optimizer is SGD
    corrects_momentum: ClassVar[bool] = False

    @abstractmethod
    def master_half(self, options: RuleOptions, n_weights: int, n_workers: int) -> MasterHalf:
        """Return the half of a master of `n_workers` workers; each sub-master counts as one."""

    @abstractmethod
    def worker_half(self, options: RuleOptions, n_weights: int) -> WorkerHalf:
        """Return the half of a worker."""

    def group_half(self, options: RuleOptions, n_weights: int, n_workers: int) -> GroupHalf:
        """Return the half of a sub-master of `n_workers` workers."""
        raise ProtocolError(f"`{spelled('mode', self.name)}` has no sub-masters.")

    def optimizer(self, options: RuleOptions, n_weights: int) -> Optimizer:
        """Return the optimizer that the learning rate of the options belongs to."""
        return make_optimizer(options.optimizer, n_weights, options.learning_rate, options.optimizer_params)

    def base_learning_rate(self, options: RuleOptions) -> float:
        """Return the learning rate that a training begins with, before schedules and callbacks."""
        return self.optimizer(options, 1).learning_rate

    def check(self, options: RuleOptions) -> None:
        """Raise ConfigurationError if options contradict this rule."""

    def check_groups(self, n_masters: int, n_processes: int) -> None:
        """Raise ConfigurationError if this rule has no sub-masters, or no worker groups of several ranks."""
        if n_masters > 1 and type(self).group_half is UpdateRule.group_half:
            raise ConfigurationError(
                f"`{spelled('n_masters')}` must be 1 with `{spelled('mode', self.name)}`, which has no `group_half`. "
                f"Received: {n_masters}; leave it out, or take another mode."
            )

    def check_workers(self, own: Mapping[str, Any], n_workers: int) -> None:
        """Raise ConfigurationError if a master has too few workers for these values of the rule's `options`."""

    def least_workers(self, own: Mapping[str, Any]) -> float:
        """Return how many workers a master must have for these values of the rule's `options`."""
        return 1.0
