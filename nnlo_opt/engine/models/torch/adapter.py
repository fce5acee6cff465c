"""Model adapter of a plain torch module.

The parameters are views into one flat tensor, so setting new weights is one copy. The gradient is computed by
`autograd.grad` and concatenated directly into the caller's vector, without using `.grad`.

This module imports torch: import it only when a model exists.
"""

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.core.base.files import atomic_path
from nnlo_opt.core.base.pulse import PULSE
from nnlo_opt.core.base.trees import Arrays, leaves, map_tree, n_samples
from nnlo_opt.core.data.ragged import take
from nnlo_opt.core.models.adapter import blame_on_trial
from nnlo_opt.core.models.layout import FloatVector, Layout, WeightSpec, check_counters, check_vector
from nnlo_opt.core.training.history import Metrics
from nnlo_opt.engine.models.losses import LossTerm, figures_of
from nnlo_opt.engine.models.metrics import OutputMetric
from nnlo_opt.engine.models.own_optimizer import Instead, Own
from nnlo_opt.engine.models.torch.comparison import Comparison
from nnlo_opt.engine.models.torch.metrics import States
from nnlo_opt.engine.models.torch.own_optimizer import TorchSteps


def check_parameters(model: Any) -> None:
    """Raise `TrialError` unless the model has trainable parameters, all in float32."""
    kind = type(model).__name__
    for name, parameter in model.named_parameters():
        if torch.nn.parameter.is_lazy(parameter):
            raise TrialError(
                f"A module must know its input shape before training. Received: {kind} with {name!r} still lazy. Call "
                "it once with features."
            )
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise TrialError(
                f"The weights of a module must be float32. Received: {kind} with {name!r} of {parameter.dtype}. Return "
                "`model.float()`, and compute in another type with `torch.autocast`."
            )
    if not any(parameter.requires_grad and parameter.numel() for parameter in model.parameters()):
        raise TrialError(
            f"A model must have trainable weights before training. Received: {kind} with none. Give it parameters that "
            "require a gradient."
        )


def held_tensors(model: Any) -> dict[str, Any]:
    """Return parameters and buffers by name. Do not cache the result: a module may replace a buffer."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def other_names(model: Any, trained: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the names of the state and of the discrete state: entries of the `state_dict` that are not weights."""
    kept = model.state_dict().keys()
    names: tuple[list[str], list[str]] = [], []
    for name, value in held_tensors(model).items():
        if name in trained or name not in kept:
            continue
        if value.is_complex():
            raise TrialError(
                f"The state of a module must be floats or integers. Received: {type(model).__name__} with {name!r} "
                f"of {value.dtype}. Keep it as `torch.view_as_real`, or register it with `persistent=False`."
            )
        names[0 if value.is_floating_point() else 1].append(name)
    return names


def is_batch_norm(module: Any) -> bool:
    """Return True if a module is a batch normalisation, with running means."""
    # A TorchScript module keeps the name of its original class.
    return "BatchNorm" in getattr(module, "original_name", type(module).__name__)


def named_outputs(outputs: Any) -> list[tuple[str, Any]]:
    """Return the outputs of a module as (name, tensor): one tensor, several, or a dict of tensors."""
    if isinstance(outputs, Mapping):
        named = [(str(name), output) for name, output in outputs.items()]
    else:
        several = outputs if isinstance(outputs, list | tuple) else [outputs]
        named = [(f"output_{number}", output) for number, output in enumerate(several)]
    for name, output in named:
        if not torch.is_tensor(output):
            raise TrialError(
                "A module must return a tensor, or a list or dict of tensors. Received: "
                f"{type(output).__name__} as {name}. Return only outputs that have labels."
            )
    return named


#: batch size for trying the model before the first batch
_N_PROBE = 2


@dataclass(frozen=True, slots=True)
class _Habits:
    """What the model's first batch revealed, in training or in evaluation."""

    #: comparison with the labels, one for each output
    comparisons: tuple[Comparison, ...]
    #: True if the model modifies its inputs, and so must get copies
    writes_inputs: bool


class Mean(torch.nn.Module):
    """Module with one input that returns the weighted mean of the outputs of its members."""

    def __init__(self, members: Sequence[Any], shares: Sequence[float]) -> None:
        super().__init__()
        self.members = torch.nn.ModuleList(members)
        self.shares = [*shares]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean of the outputs for features x."""
        total = torch.zeros([], device=x.device)
        for number, member in enumerate(self.members):
            total = total + member(x) * self.shares[number]
        return total


class TorchAdapter:
    """`ModelAdapter` of one torch module, which owns the module's parameters.

    Weights are the parameters that require a gradient; shared ones count once. State is all other float tensors in the
    `state_dict`: buffers, for example the running means of a batch normalisation, and frozen parameters. The discrete
    state is the integer buffers and a pair (seed, batches trained). This pair alone determines the random numbers of a
    batch, so batches are reproducible after a restart, even if other code draws random numbers.

    Args:
        model: torch module; it is moved to the GPU if there is one.
        terms: loss of each output.
        metrics: further metrics of the outputs, for `evaluate`.
        merging: names of the metrics whose states add up over samples; None for all that declare it.

    Raises:
        TrialError: if the module cannot be trained.
    """

    trains_itself = False

    def __init__(
        self,
        model: Any,
        terms: Sequence[LossTerm],
        *,
        metrics: Sequence[OutputMetric] = (),
        merging: Collection[str] | None = (),
    ) -> None:
        check_parameters(model)
        self._model: Any = model
        self._terms = tuple(terms)
        self.figures = figures_of(terms)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._on_host = self._device.type == "cpu"
        model.to(self._device)
        self._states = States(metrics, merging, self._device)
        trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.layout = Layout(tuple(WeightSpec(name, tuple(p.shape)) for name, p in trained.items()))
        self.n_weights = self.layout.n_weights
        self._parameters = [*trained.values()]
        #: memory of all parameters, (n_weights,)
        self._weights: Any = torch.cat([parameter.detach().reshape(-1) for parameter in self._parameters])
        torch.nn.utils.vector_to_parameters(self._weights, self._parameters)
        #: names of the tensors of the state, and of the discrete state
        self._state_names, self._counter_names = other_names(model, trained)
        held = held_tensors(model)
        self._state_layout = Layout(tuple(WeightSpec(name, tuple(held[name].shape)) for name in self._state_names))
        self.n_state = self._state_layout.n_weights
        #: seed of this model's random numbers, and number of batches trained
        self._random = [int(torch.randint(2**31, ())), 0]
        #: mode of the module; None before we first set it
        self._training: bool | None = None
        #: submodules that stay in evaluation mode, because `get_model` put them there
        self._resting = [module for module in model.modules() if not module.training] if model.training else []
        self._normalises = any(is_batch_norm(module) for module in {*model.modules()} - {*self._resting})
        #: observations from the first batch in training (True) and in evaluation (False)
        self._habits: dict[bool, _Habits] = {}
        #: True if integer inputs are converted to floats
        self._casts = False

    def read_weights(self, out: FloatVector) -> None:
        check_vector(out, self.n_weights)
        _tensor_of(out).copy_(self._weights)

    def write_weights(self, vector: FloatVector) -> None:
        check_vector(vector, self.n_weights)
        self._weights.copy_(_tensor_of(vector))

    def borrow_weights(self, vector: FloatVector) -> None:
        self.write_weights(vector)  # moving the parameters for every batch would cost more than the copy

    def read_state(self, out: FloatVector) -> None:
        held = held_tensors(self._model)
        self._state_layout.gather([held[name].detach().cpu().float().numpy() for name in self._state_names], out)

    def write_state(self, vector: FloatVector) -> None:
        held = held_tensors(self._model)
        for name, view in zip(self._state_names, self._state_layout.views(vector), strict=True):
            held[name].detach().copy_(_tensor_of(view))

    def discrete_state(self) -> list[list[int]]:
        """Return (seed, batches trained), then the integer buffers."""
        held = held_tensors(self._model)
        return [[*self._random], *([int(n) for n in held[name].flatten()] for name in self._counter_names)]

    def load_discrete_state(self, values: list[list[int]]) -> None:
        held = held_tensors(self._model)
        check_counters(values, self.discrete_state())
        self._random = [*values[0]]
        for name, value in zip(self._counter_names, values[1:], strict=True):
            held[name].copy_(torch.tensor(value).view(held[name].shape))

    def gradient(self, x: Arrays, y: Arrays, out: FloatVector, sample_weight: FloatVector | None = None) -> Metrics:
        check_vector(out, self.n_weights)
        n = n_samples(x)
        batch = x, y, sample_weight
        if n == 1 and self._normalises:
            # torch refuses to normalise a single sample, which has no variance: use it twice, with the same result.
            batch = (take(x, _TWICE), take(y, _TWICE), None if sample_weight is None else np.repeat(sample_weight, 2))
        with blame_on_trial("gradient"):
            outputs = self._outputs(batch[0], training=True)
            loss, sums = self._compare(outputs, batch[1], self._weights_of(batch[2]), training=True)
            if loss.requires_grad:
                slopes = torch.autograd.grad(loss, self._parameters, allow_unused=True, materialize_grads=True)
                parts = [slope.reshape(-1) for slope in slopes]
                target = torch.from_numpy(out)
                torch.cat(parts, out=target) if self._on_host else target.copy_(torch.cat(parts))
            else:
                out[:] = 0
            self._random[1] += 1
            metrics = _metrics(n, n_samples(batch[0]), self.figures, sums)
            if not self._states.any_adds_up:
                return metrics
            with torch.no_grad():
                seen = [output.detach()[:n] for output in outputs]
                states = self._states.sums(self._habits[True].comparisons, seen, self._labels(y))
            return replace(metrics, states=states)

    def evaluate(self, x: Arrays, y: Arrays, sample_weight: FloatVector | None = None) -> Metrics:
        n = n_samples(x)
        with blame_on_trial("evaluation"), torch.no_grad():
            outputs, weights = self._outputs(x, training=False), self._weights_of(sample_weight)
            _, sums = self._compare(outputs, y, weights, training=False)
            metrics = _metrics(n, n, self.figures, sums)
            if not self._states.metrics:
                return metrics
            states = self._states.sums(self._habits[False].comparisons, outputs, self._labels(y))
            return replace(metrics, states=self._states.none | states)

    def finish(
        self, states: Mapping[str, ArrayLike], batches: Callable[[], Iterable[tuple[Arrays, Arrays]]]
    ) -> dict[str, float]:
        """Return the metrics of merged states, and of all samples those that do not add up."""

        def computed() -> Iterator[tuple[Sequence[Comparison], list[Any], list[Any]]]:
            for x, y in batches():
                outputs = self._outputs(x, training=False)
                yield self._habits[False].comparisons, outputs, self._labels(y)
                PULSE.ticks += 1

        with blame_on_trial("evaluation"), torch.no_grad():
            return self._states.results(states, computed)

    def predict(self, x: Arrays) -> list[np.ndarray]:
        """Return the outputs in evaluation mode."""
        with blame_on_trial("prediction"), torch.no_grad():
            if not self._habits:
                self._try(take(x, slice(0, _N_PROBE)))
            self._turn(False)
            return [output.cpu().numpy() for output in self._forward(self._inputs(x, training=False), n_samples(x))]

    def measure(self, outputs: Sequence[np.ndarray], y: Arrays) -> Metrics:
        """Return the metrics of outputs (n, ...); call `predict` first."""
        n = len(outputs[0])
        with blame_on_trial("evaluation"), torch.no_grad():
            _, sums = self._compare([self._tensor(output) for output in outputs], y, None, training=False)
            return _metrics(n, n, self.figures, sums)

    def measure_others(self, outputs: Sequence[np.ndarray], y: Arrays) -> dict[str, float]:
        comparisons = self._habits[False].comparisons
        with blame_on_trial("evaluation"), torch.no_grad():
            parts = comparisons, [self._tensor(output) for output in outputs], self._labels(y)
            return self._states.results(self._states.none, lambda: [parts])

    def stepping(self, own: Own, instead: Instead) -> TorchSteps:
        """Return the steps of a torch optimizer on this module."""
        return TorchSteps(own, self._parameters, self._weights, instead)

    def save(self, path: Path) -> None:
        """Write the `state_dict`, or a full TorchScript module; `path` must end in ".pt"."""
        with atomic_path(path) as temporary:
            if isinstance(self._model, torch.jit.ScriptModule):
                torch.jit.save(self._model, str(temporary))
                return
            # Copy, or torch would save each tensor as a view of the full vector.
            state = {
                name: value.detach().cpu().clone() if torch.is_tensor(value) else value
                for name, value in self._model.state_dict().items()
            }
            torch.save(state, temporary)

    def synced_model(self) -> Any:
        """Return the module itself, which always holds the current weights and state."""
        return self._model

    def release(self) -> None:
        """Free the model; the adapter cannot be used afterwards."""
        self._model = self._weights = None
        self._parameters, self._resting, self._habits = [], [], {}
        forget_models()

    # ------------------------------------------------------------ computing

    def _outputs(self, x: Arrays, *, training: bool) -> list[Any]:
        """Return the outputs for a batch, and observe the model if it is the first one."""
        if not self._habits:
            self._try(take(x, slice(0, _N_PROBE)))
        self._turn(training)
        inputs = self._inputs(x, training)
        outputs = self._forward(inputs, n_samples(x))
        if training not in self._habits:
            self._observe(inputs, outputs, training)
        return outputs

    def _weights_of(self, sample_weight: FloatVector | None) -> Any:
        return None if sample_weight is None else self._tensor(sample_weight).float()

    def _labels(self, y: Arrays) -> list[Any]:
        return [self._tensor(array) for array in leaves(y)]

    def _compare(self, outputs: list[Any], y: Arrays, weights: Any, *, training: bool) -> tuple[Any, list[Any]]:
        """Return the loss of outputs with their labels, and their figures, as means or counts, all as tensors."""
        labels = self._labels(y)
        comparisons = self._habits[training].comparisons
        if len(labels) != len(outputs):
            raise TrialError(
                f"Every output of the model must have its own labels. Received: {len(labels)} sets of labels for "
                f"{len(outputs)} outputs."
            )
        loss, means, counts = None, [], []
        for comparison, output, label in zip(comparisons, outputs, labels, strict=True):
            mean = comparison.mean(output, label, weights)
            means.append(mean)
            if comparison.term.accuracy:
                counts.append(comparison.n_correct(output.detach(), label))
            if comparison.term.weight != 1:
                mean = mean * comparison.term.weight
            loss = mean if loss is None else loss + mean
        # The figures are in the order of `figures_of`.
        return loss, [loss, *counts[:1], *((*means, *counts) if len(means) > 1 else ())]

    def _forward(self, inputs: list[Any], n: int) -> list[Any]:
        """Return the outputs for `n` samples, in float32."""
        seed(self._random, self._training is True, self._device)
        result = self._model(*inputs)
        # The usual case first, because this code costs time in every batch.
        tensors = [result] if type(result) is torch.Tensor else [output for _, output in named_outputs(result)]
        outputs = [output if output.dtype is torch.float32 else output.float() for output in tensors]
        if n == 1:
            # `squeeze` in a model also removes a batch dimension of 1.
            outputs = [output if output.shape[:1] == (1,) else output.unsqueeze(0) for output in outputs]
        for output in outputs:
            if not output.dim() or len(output) != n:
                raise TrialError(
                    f"The model must give one row for each sample, {n} for this batch. Received: an output of shape "
                    f"{tuple(output.shape)}. Look for a `view` or `reshape` with a wrong size."
                )
        return outputs

    def _try(self, x: Arrays) -> None:
        """Determine the model's input types and its outputs, from a few samples in evaluation mode."""
        self._turn(False)
        errors = []
        # Float layers refuse integer pixels in 0..255, but an embedding requires integers.
        whole = any(np.asarray(array).dtype.kind in "iub" for array in leaves(x))
        for self._casts in (False, True) if whole else (False,):
            inputs = self._inputs(x, training=False)
            try:
                with torch.enable_grad():
                    outputs = self._forward(inputs, n_samples(x))
            except RuntimeError as error:
                errors.append(error)
            else:
                self._observe(inputs, outputs, training=False)
                return
        raise errors[0]

    def _observe(self, inputs: list[Any], outputs: list[Any], training: bool) -> None:
        if len(outputs) != len(self._terms):
            raise TrialError(
                f"The model must have one output for each loss, {len(self._terms)}. Received: {len(outputs)}."
            )
        comparisons = tuple(Comparison.of(term, output) for term, output in zip(self._terms, outputs, strict=True))
        self._habits[training] = _Habits(comparisons, any(tensor._version for tensor in leaves(inputs)))

    def _inputs(self, x: Arrays, training: bool) -> list[Any]:
        habits = self._habits.get(training)
        copies = habits is None or habits.writes_inputs

        def tensor(array: np.ndarray) -> Any:
            given = self._tensor(array)
            if self._casts and not given.is_floating_point():
                return given.float()
            return given.clone() if copies else given

        return map_tree(tensor, x) if isinstance(x, list) else [tensor(x)]

    def _tensor(self, array: np.ndarray) -> Any:
        """Return `array` as a tensor, without copying if possible; floats become float32."""
        array = np.asarray(array)
        if array.dtype != np.float32:
            if array.dtype.kind == "f":
                array = array.astype(np.float32)
            elif array.dtype.kind == "u" and array.itemsize > 1:
                array = array.astype(np.int64)
        if not array.flags.writeable or min(array.strides, default=0) < 0:
            array = array.copy()
        tensor = torch.from_numpy(array)
        return tensor if self._on_host else tensor.to(self._device)

    def _turn(self, training: bool) -> None:
        """Put the module into training or evaluation mode."""
        if training is self._training:
            return
        self._model.train(training)
        for module in self._resting:
            module.training = False
        self._training = training


def forget_models() -> None:
    """Free every model that is no longer referenced, including a model whose building has failed."""
    gc.collect()
    torch.cuda.empty_cache()  # does nothing without a GPU


def seed(random: Sequence[int], training: bool, device: Any) -> None:
    """Seed the next computation: from `random` (seed, batch) in training, always the same in evaluation."""
    value = sum(random) if training else 0
    # `torch.manual_seed` would take a tenth of a millisecond to look for devices.
    torch.default_generator.manual_seed(value)
    if device.type == "cuda":
        torch.cuda.manual_seed(value)


_TWICE = np.zeros(2, np.int64)


def _metrics(n: int, n_computed: int, figures: Sequence[str], values: list[Any]) -> Metrics:
    """Return figures as sums over `n` samples; counts cover `n_computed` samples."""
    sums = {}
    for name, value in zip(figures, values, strict=True):
        is_count = name == "acc" or name.endswith("_acc")
        sums[name] = value.item() * (n / n_computed if is_count else n)
    return Metrics(n, sums)


def _tensor_of(vector: FloatVector) -> Any:
    """Return a tensor of a vector, with the same memory if the vector is writeable."""
    return torch.from_numpy(vector if vector.flags.writeable else vector.copy())
