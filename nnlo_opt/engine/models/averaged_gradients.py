"""Averages gradients over ranks in an optimizer of Keras or torch, or in a gradient tape of TensorFlow.

The optimizer remains the user's object, of the same class. We replace the method that `model.fit` calls for a step,
`apply` or on JAX `stateless_apply`, and average its gradients. So a saved optimizer does not depend on this package.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.vectors import aligned_empty
from nnlo_opt.core.comm.calls import Step
from nnlo_opt.core.models.layout import slices_of
from nnlo_opt.engine.models.tensors import through_flat


class Chunked(Protocol):
    """Averaging of a vector that is sent in parts."""

    #: weight of this rank; the caller multiplies its numbers by it
    share: float

    def send_until(self, end: int) -> None:
        """Send what is complete: all numbers before `end`."""

    def finish(self) -> None:
        """Wait until the vector holds the mean."""


class AveragingCalls(Protocol):
    """Collective calls that average over ranks, implemented by `engine.comm.mpi.agreed_calls`."""

    rank: int
    size: int

    def average(
        self, vector: np.ndarray, n_samples: int, step: Step, kind: str = "sum", sums: bool = False
    ) -> np.ndarray:
        """Return the mean of the vectors of all ranks, weighted by their samples; their sum with `sums`."""

    def average_chunks(self, vector: np.ndarray, n_samples: int, step: Step) -> Chunked:
        """Start averaging a vector that is filled from the beginning to the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wire:
    """Settings for sending gradients."""

    #: `sum`: in full precision; `float16`, `bfloat16`: in 16 bits
    kind: str = "sum"
    #: True for the sum over the ranks instead of the mean, like `op=hvd.Sum`
    sums: bool = False


#: step methods of a Keras optimizer, with the position of the gradients among the arguments
_STEPS = {"apply": 0, "stateless_apply": 1}


class AveragedApply:
    """Replacement for the step method of a Keras optimizer, which first averages the gradients over all ranks."""

    def __init__(self, optimizer: Any, averaging: AveragingCalls, wire: Wire, name: str) -> None:
        """Replace the method `name` of `optimizer`."""
        self._optimizer = optimizer
        self._apply: Callable[..., Any] = getattr(optimizer, name)
        self._place = _STEPS[name]
        self._averaging = averaging
        self._wire = wire
        #: samples of the current batch, a number or a tensor; 1 if unknown, for equal weights of all ranks
        self._n_samples: Any = 1
        #: averages gradients of torch while they are computed; None on other backends
        self._hooks: _TorchHooks | None = None
        setattr(optimizer, name, self)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Average the gradients, then call the optimizer's own step. Collective: every rank."""
        before, grads, after = arguments[: self._place], arguments[self._place], arguments[self._place + 1 :]
        means = self._hooks.finish() if self._hooks else None
        means = means or averaged(grads, self._averaging, self._wire, self._n_samples, self._rates(*before))
        return self._apply(*before, means, *after, **named)

    def _rates(self, variables: Sequence[Any] | None = None) -> list[Any]:
        """Return the learning rate of this step; `variables`: values of the optimizer's variables, on JAX."""
        import keras

        known = zip(self._optimizer.variables, variables, strict=True) if variables is not None else ()
        with keras.StatelessScope(state_mapping=known) if variables is not None else nullcontext():
            return [keras.ops.convert_to_tensor(self._optimizer.learning_rate)]

    def watch(self, model: Any) -> None:
        """From now on weight the gradients of `model` by the samples of their batches."""
        import keras

        plain = model.train_step
        if isinstance(plain, partial) and plain.func == self._step:
            return
        if keras.backend.backend() == "tensorflow" and model.jit_compile:
            model.jit_compile = False  # XLA cannot call MPI
        if keras.backend.backend() == "torch" and self._wire == Wire() and self._averaging.size > 1:
            self._hooks = _TorchHooks(self._averaging)
        model.train_step = partial(self._step, model, plain)
        model.train_function = None  # discard that of an earlier `fit`, which does not average

    def _step(self, model: Any, train_step: Callable[..., Any], *arguments: Any) -> Any:
        """Call the `train_step` of a model; its last argument is the batch."""
        import keras

        if averaged_apply_of(model) is not self:  # the model was compiled again
            return train_step(*arguments)
        first = next(leaf for leaf in keras.tree.flatten(arguments[-1]) if leaf is not None)
        self._n_samples = keras.ops.shape(first)[0]
        if self._hooks is not None:
            self._hooks.begin(model.trainable_variables, self._n_samples, self._rates())
        try:
            return train_step(*arguments)
        finally:
            self._n_samples = 1


def averaged(
    grads: Sequence[Any], averaging: AveragingCalls, wire: Wire, n_samples: Any = 1, rates: Sequence[Any] = ()
) -> list[Any]:
    """Return the gradients averaged over all ranks; None stays None.

    Args:
        grads: gradients of the variables.
        averaging: collective calls.
        wire: settings for sending gradients.
        n_samples: samples of the batch.
        rates: learning rates of the step, numbers or tensors.

    Collective: every rank, with equal shapes and rates.
    """
    present = [grad for grad in grads if grad is not None]
    shapes = [None if grad is None else tuple(grad.shape) for grad in grads]

    def average(flat: np.ndarray, n: Any, *rates: Any) -> np.ndarray:
        return averaging.average(flat, int(n), Step(shapes, tuple(map(float, rates))), wire.kind, wire.sums)

    if not present or averaging.size == 1:
        return list(grads)
    means = iter(through_flat(average, present, n_samples, *rates))
    return [None if grad is None else next(means) for grad in grads]


class _TorchHooks:
    """Sends gradients of torch while gradients of earlier layers are still being computed.

    The vector starts with the last variables, because their gradients are ready first.
    """

    def __init__(self, averaging: AveragingCalls) -> None:
        self._averaging = averaging
        #: parameters with a hook that calls `_take`
        self._hooked: set[Any] = set()
        #: parameters in the order of the vector, with their slices
        self._places: dict[Any, slice] = {}
        self._vector = aligned_empty(0)
        self._n_samples = 0
        #: learning rates of this step
        self._rates: tuple[float, ...] = ()
        #: parameters whose gradients have arrived in this step
        self._come: set[Any] = set()
        #: parameters from the first one without a gradient, in the order of the vector
        self._left: deque[Any] = deque()
        self._is_in_step = False
        self._chunked: Chunked | None = None

    def begin(self, variables: Sequence[Any], n_samples: int, rates: Sequence[Any]) -> None:
        """Prepare for the gradients of these Keras variables, for a batch of `n_samples` samples."""
        parameters = [variable.value for variable in reversed(variables)]
        if list(map(id, parameters)) != list(map(id, self._places)):
            self._place(parameters)
        self._n_samples, self._rates = n_samples, tuple(map(float, rates))
        self._is_in_step = bool(self._places)
        self._come.clear()
        self._left = deque(self._places)

    def _place(self, parameters: Sequence[Any]) -> None:
        import torch

        if any(parameter.dtype != torch.float32 for parameter in parameters):
            return  # one vector, at the end of the step
        sizes = [parameter.numel() for parameter in parameters]
        for parameter in set(parameters) - self._hooked:
            parameter.register_post_accumulate_grad_hook(self._take)
        self._hooked.update(parameters)
        self._places = dict(zip(parameters, slices_of(sizes), strict=True))
        self._vector = aligned_empty(sum(sizes))

    def _take(self, parameter: Any) -> None:
        """Write a gradient to the vector, and send what is complete."""
        if not self._is_in_step or parameter not in self._places:
            return
        if self._chunked is None:
            self._vector[:] = 0
            shapes = [tuple(place.shape) for place in self._places]
            self._chunked = self._averaging.average_chunks(self._vector, self._n_samples, Step(shapes, self._rates))
        if parameter in self._come:
            raise ConfigurationError(
                "`hvd.DistributedOptimizer` averages one gradient a step. Received: a second `backward` in the same "
                "step. Add the losses, and call `backward` once."
            )
        self._come.add(parameter)
        place = self._places[parameter]
        gradient = parameter.grad.detach().cpu().numpy().reshape(-1)
        np.multiply(gradient, np.float32(self._chunked.share), out=self._vector[place])
        while self._left and self._left[0] in self._come:
            self._left.popleft()
        self._chunked.send_until(self._places[self._left[0]].start if self._left else self._vector.size)

    def finish(self) -> list[Any] | None:
        """Return the averaged gradients in the order of the variables; None if none arrived in this step."""
        import torch

        if self._chunked is None:
            return None
        self._chunked.finish()
        self._chunked, self._is_in_step = None, False
        mean = torch.from_numpy(self._vector)
        return [mean[place].reshape(p.shape).to(p.device) for p, place in reversed(self._places.items())]


def _average_before_steps(optimizer: Any, averaging: AveragingCalls, wire: Wire) -> None:
    """Make a torch optimizer average the gradients over all ranks before each step; a missing one counts as zero."""
    import torch

    is_skipped = False

    def synchronize() -> None:
        if averaging.size > 1:
            parameters = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
            rates = [group["lr"] for group in optimizer.param_groups if "lr" in group]
            for parameter, mean in zip(parameters, averaged(grads, averaging, wire, 1, rates), strict=True):
                parameter.grad = mean

    @contextmanager
    def skip_synchronize() -> Iterator[None]:
        nonlocal is_skipped
        is_skipped = True
        try:
            yield
        finally:
            is_skipped = False

    def before(optimizer: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        if (*arguments[1:], named.get("closure"))[0] is not None:
            raise ConfigurationError(
                "`hvd.DistributedOptimizer` averages gradients before `step`. Received: a closure, which computes them "
                "in `step`. Call `backward` first, and `step()` without a closure."
            )
        if not is_skipped:
            synchronize()

    optimizer.register_step_pre_hook(before)
    # Horovod's names, for scripts that clip the averaged gradients, and then step without averaging again
    optimizer.synchronize, optimizer.skip_synchronize = synchronize, skip_synchronize


def distribute_tape(tape: Any, averaging: AveragingCalls, wire: Wire, n_samples: Any = 1) -> Any:
    """Make a TensorFlow tape average its gradients over all ranks; return the same tape.

    Args:
        tape: the tape, after its context.
        averaging: collective calls.
        wire: settings for sending gradients.
        n_samples: samples of the batch; by default all ranks have the same weight.
    """
    plain = tape.gradient

    def gradient(target: Any, sources: Any, *arguments: Any, **options: Any) -> Any:
        import tensorflow as tf

        grads = plain(target, sources, *arguments, **options)
        return tf.nest.pack_sequence_as(grads, averaged(tf.nest.flatten(grads), averaging, wire, n_samples))

    tape.gradient = gradient
    return tape


def distribute(optimizer: Any, averaging: AveragingCalls, wire: Wire) -> Any:
    """Make a Keras or torch optimizer average gradients over all ranks; return the same optimizer.

    Raises:
        ConfigurationError: it is not such an optimizer, or already averages.
    """
    if _averaged_apply_in(optimizer) is not None or hasattr(optimizer, "skip_synchronize"):
        raise ConfigurationError(
            "`hvd.DistributedOptimizer` must wrap an optimizer only once. Received: an optimizer that it returned. "
            "Use that one."
        )
    if hasattr(optimizer, "register_step_pre_hook"):
        _average_before_steps(optimizer, averaging, wire)
        return optimizer
    import keras

    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise ConfigurationError(
            "`hvd.DistributedOptimizer` takes an optimizer of Keras 3, such as `keras.optimizers.Adam(0.001)`, or of "
            f"torch. Received: {type(optimizer).__module__}.{type(optimizer).__name__}."
        )
    AveragedApply(optimizer, averaging, wire, "stateless_apply" if keras.backend.backend() == "jax" else "apply")
    return optimizer


def _averaged_apply_in(optimizer: Any) -> AveragedApply | None:
    methods = (getattr(optimizer, name, None) for name in _STEPS)
    return next((method for method in methods if isinstance(method, AveragedApply)), None)


def averaged_apply_of(model: Any) -> AveragedApply | None:
    """Return the averaging of a compiled model's optimizer; None if its optimizer does not average.

    Raises:
        ConfigurationError: Keras has wrapped it in another optimizer, which might skip steps on single ranks.
    """
    if _averaged_apply_in(getattr(model.optimizer, "inner_optimizer", None)) is not None:
        raise ConfigurationError(
            "`hvd.DistributedOptimizer` must be the outermost optimizer, because each rank decides by its own "
            "gradients whether to skip a step. Received: one inside a `LossScaleOptimizer`, which Keras adds for "
            '"mixed_float16". Give `hvd.DistributedOptimizer(keras.optimizers.LossScaleOptimizer(optimizer))`.'
        )
    return _averaged_apply_in(model.optimizer)
