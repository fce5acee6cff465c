"""Parts of a torch module by name: parameters, buffers, outputs."""

from collections.abc import Mapping
from typing import Any

from nnlo_opt.errors import TrialError


def check_parameters(model: Any) -> None:
    """Raise `TrialError` unless there are parameters that can be trained, in float32."""
    import torch

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
    """Return parameters and buffers by name; must be called again later, because a module may replace a buffer."""
    return dict(model.named_parameters()) | dict(model.named_buffers())


def other_names(model: Any, trained: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the names of the state and of the discrete state: entries of the `state_dict` that are no weights."""
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
    """Return True if a module normalises batches, and so keeps running means."""
    # A TorchScript module keeps the name of its original class.
    return "BatchNorm" in getattr(module, "original_name", type(module).__name__)


def named_outputs(outputs: Any) -> list[tuple[str, Any]]:
    """Return the outputs of a module as (name, tensor): one tensor, several, or a dict of tensors."""
    import torch

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
