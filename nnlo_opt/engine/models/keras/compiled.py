"""Arguments of `compile` of a Keras model, and its own methods of training, which nothing here calls."""

import json
import math
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.files import regular
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.update_rules.optimizers import OPTIMIZERS
from nnlo_opt.engine.models import losses
from nnlo_opt.engine.models.compiled import Compiled
from nnlo_opt.engine.models.losses import BatchLoss, VariedLoss
from nnlo_opt.engine.models.own_optimizer import Own

#: arguments of any optimizer -> options
_BESIDE = {
    "weight_decay": "weight_decay",
    "clipnorm": "clip_norm",
    "global_clipnorm": "global_clip_norm",
    "clipvalue": "clip_value",
}
#: arguments of an optimizer without effect on steps here
_WITHOUT = ("ema_overwrite_frequency", "loss_scale_factor")
#: methods of a model that `fit` and `evaluate` call, with what does the same
_METHODS = {
    "compute_loss": "Give the function of each sample by `get_loss`, and add penalties by `add_loss`",
    "compute_metrics": "Leave it out, and give metrics by `get_metrics`",
    **dict.fromkeys(
        ("train_step", "test_step", "make_train_function", "make_test_function", "fit"),
        "Give the loss by `get_loss`, or search an objective that calls `fit` itself",
    ),
}
#: optimizers without squares of gradients
_LINEAR = ("sgd", "lion")
#: attribute of a model from a file: which of its settings of `compile` cannot be read
_FAULT = "_nnlo_opt_compile_fault"
#: reductions that are the mean of a batch
_MEANS = ("sum_over_batch_size", "mean", "auto")
#: reductions that workers cannot make of the means of their batches
_OF_BATCH = ("sum", "mean_with_sample_weight")


def refuse_own_methods(model: Any) -> None:
    """Raise ConfigurationError if the model overrides a method that trains or measures."""
    import keras

    for name, remedy in _METHODS.items():
        if name in vars(model) or getattr(type(model), name) is not getattr(keras.Model, name):
            raise ConfigurationError(
                "A model is trained by the gradients of its loss, not by its own methods. Received: "
                f"{type(model).__name__} with its own `{name}`, which nothing would call. "
                f"{remedy}."
            )


def arguments_of(model: Any) -> Compiled:
    """Return what `compile` said of a model; nothing for one that is not compiled.

    Raises:
        ConfigurationError: `compile` has a loss that cannot be taken.
    """
    # Keras has no public access to the arguments themselves.
    config = getattr(model, "_compile_config", None)
    asked: dict[str, Any] = getattr(config, "config", {}) if getattr(model, "compiled", False) else {}
    if not asked:
        fault = vars(model).get(_FAULT)
        return Compiled(unused=() if fault is None else (fault,))
    optimizer = _optimizer(model)
    unused = []
    if asked.get("jit_compile") and not model._resolve_auto_jit_compile():
        unused.append("jit_compile=True (write `get_model.jit_compile = True`)")
    if asked.get("run_eagerly"):
        unused.append("run_eagerly=True (steps are always compiled)")
    if (n_steps := asked.get("steps_per_execution") or 1) != 1:
        unused.append(f"steps_per_execution={n_steps} (batches are computed one by one)")
    scale = getattr(model.optimizer, "initial_scale", 1.0)  # of a LossScaleOptimizer
    if (power := 2.0 ** max(0, round(math.log2(scale)))) != scale:
        unused.append(f"initial_scale={scale:g} of LossScaleOptimizer (it begins at {power:g})")
    weights, loss = asked.get("loss_weights"), _request(asked.get("loss"))
    reduced = [one.text for one in _each(loss) if isinstance(one, BatchLoss)]
    unused += [
        f"{text} over the batches of several workers, which are averaged, or over validation batches of the size that "
        "`fit` has"
        for text in dict.fromkeys(reduced)
    ]
    return replace(
        optimizer,
        loss=loss,
        loss_weights=[weights] if isinstance(weights, int | float) else weights,
        metrics=asked.get("metrics"),
        weighted_metrics=asked.get("weighted_metrics"),
        unused=tuple(unused),
    )


def compile_as_saved(model: Any, path: Path) -> None:
    """Compile a model as it was when Keras saved it as `path`; what cannot be read without code is noted as a fault."""
    import keras

    with zipfile.ZipFile(regular(path)) as archive:
        config = json.loads(archive.read("config.json")).get("compile_config")
    if not config:
        return
    try:
        if foreign := next((name for name in _modules_in(config) if name.partition(".")[0] != "keras"), None):
            raise ValueError(f"it needs `{foreign}`")
        model.compile(**keras.saving.deserialize_keras_object(config, safe_mode=True))
    except Exception as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        note_unread(model, f"all settings in `{path}` ({reason}; compile in `get_model` of a Python file instead)")


def note_unread(model: Any, what: str) -> None:
    """Have a model from a file say that something of its `compile` is not read."""
    setattr(model, _FAULT, what)


def _modules_in(config: Any) -> Iterator[str]:
    """Yield the modules that a saved configuration names."""
    if isinstance(config, Mapping):
        if isinstance(name := config.get("module"), str) and "class_name" in config and name != "builtins":
            yield name
        for value in config.values():
            yield from _modules_in(value)
    elif isinstance(config, list):
        for value in config:
            yield from _modules_in(value)


# ---------------------------------------------------------------- the optimizer


def _optimizer(model: Any) -> Compiled:
    """Return what is known of an optimizer."""
    import keras

    optimizer = model.optimizer
    if optimizer is None:
        return Compiled()
    optimizer = getattr(optimizer, "inner_optimizer", optimizer)  # of a loss scale, which is kept here anyway
    kind, config = type(optimizer), optimizer.get_config()
    name = kind.__name__.lower()
    rate, schedule = _rate(config.get("learning_rate"))
    is_of_keras = kind.__module__.partition(".")[0] == "keras"
    is_ours = is_of_keras and name in OPTIMIZERS
    parameters = OPTIMIZERS[name].parameters if is_ours else {}
    defaults = kind().get_config() if is_of_keras else config
    apart = ("name", "learning_rate", *(["ema_momentum"] * (not config.get("use_ema"))))
    changed = {key: value for key, value in config.items() if key not in apart and value != defaults[key]}
    own_rate = {"learning_rate": rate} if rate is not None else {}
    bound = constraints_of(model)
    text = f"{kind.__name__}({_in_words(own_rate | changed)}){' with constraints' * bool(bound)}"
    ema = config.get("ema_momentum") if config.get("use_ema") else None
    without = [f"{key}={config[key]!r}" for key in _WITHOUT if config.get(key)]
    shared_rows: list[str] = []
    if (
        name not in _LINEAR
        and keras.backend.backend() == "tensorflow"
        and any(isinstance(layer, keras.layers.Embedding) and layer.trainable for layer in model._flatten_layers())
    ):
        shared_rows.append(
            "the squares of gradients of an Embedding by Keras on TensorFlow, which leave out that samples of a batch "
            "share rows (their gradients are added first, as by other backends)"
        )
    unused_own = [*([f"{' and '.join(without)} of {kind.__name__}"] if without else []), *shared_rows]
    own = Own(
        optimizer=optimizer,
        words=text.replace(f"={rate!r}", f"={schedule}", 1) if schedule else text,
        schedule=schedule,
        n_scheduled=_n_scheduled(config.get("learning_rate")),
        ema=ema,
    )
    if not is_ours:
        return Compiled(optimizer=text, own=own, unused_own=tuple(unused_own))
    chosen = {key: changed.pop(key) for key in parameters if key in changed}
    beside = {option: changed.pop(key) for key, option in _BESIDE.items() if key in changed}
    if changed.pop("use_ema", False):
        beside["ema"] = changed.pop("ema_momentum", config["ema_momentum"])
    if config.get("weight_decay"):
        kept = [v.path for v in model.trainable_variables if not optimizer._use_weight_decay(v)]
        beside |= {"no_decay": f"^({'|'.join(map(re.escape, kept))})$"} if kept else {}
    others = [f"{key}={value!r}" for key, value in changed.items()]
    unused = [f"{' and '.join(others)} of {kind.__name__}"] if others else []
    unused += shared_rows
    if schedule:
        unused.append(f"{schedule} of its learning rate (`{spelled('lr_schedule')}`)")
    is_alike = changed.keys() <= {*_WITHOUT} and not bound
    return Compiled(
        optimizer=text,
        steps={"optimizer": name, "learning_rate": rate, "optimizer_params": chosen, **beside},
        unused_steps=tuple(unused),
        own=None if is_alike and not schedule else replace(own, differs_in_rate_only=is_alike),
        unused_own=tuple(unused_own),
    )


def constraints_of(model: Any) -> list[str]:
    """Return the constraints of weights, which an optimizer of Keras applies after each step."""
    return [
        f"{type(constraint).__name__} of {variable.path}"
        for variable in model.trainable_variables
        if (constraint := getattr(variable, "constraint", None)) is not None
    ]


def _in_words(config: Mapping[str, Any]) -> str:
    """Return arguments as text, without addresses of objects."""
    plain = (bool, int, float, str, list, tuple, type(None))
    shown = ((key, repr(value) if isinstance(value, plain) else type(value).__name__) for key, value in config.items())
    return ", ".join(f"{key}={value}" for key, value in shown)


def _rate(value: Any) -> tuple[float | None, str]:
    """Return a learning rate, the first one of a schedule, None if that is unknown; and the name of the schedule."""
    if isinstance(value, Mapping):
        config = value.get("config", {})
        first = config.get("initial_learning_rate", next(iter(config.get("values", ())), None))
        return _rate(first)[0], str(value.get("class_name"))
    # Keras keeps it in float32: 0.1 is 0.1 again.
    return (float(str(np.float32(value))), "") if isinstance(value, int | float) else (None, "")


def _n_scheduled(value: Any) -> int | None:
    """Return the steps after which a schedule changes no more; None if it always does, or that is unknown."""
    config = value.get("config", {}) if isinstance(value, Mapping) else {}
    match value.get("class_name") if config else "":
        case "CosineDecay":
            return int(config["decay_steps"] + (config.get("warmup_steps") or 0))
        case "PolynomialDecay" if not config.get("cycle"):
            return int(config["decay_steps"])
        case "PiecewiseConstantDecay":
            return int(config["boundaries"][-1])
    return None


# ---------------------------------------------------------------- losses


def _request(loss: Any) -> Any:
    """Return the losses of `compile` as `LossRequest` has them."""
    if loss is None:
        return None
    if isinstance(loss, Mapping):
        return {name: _loss(one) for name, one in loss.items()}
    return [_loss(one) for one in loss] if isinstance(loss, list | tuple) else _loss(loss)


def with_objects_read(request: Any) -> Any:
    """Return a loss request whose objects of Keras are functions of each sample, as those of `compile`."""
    import keras

    if isinstance(request, Mapping):
        return {name: with_objects_read(one) for name, one in request.items()}
    if isinstance(request, list | tuple):
        return [with_objects_read(one) for one in request]
    return _of_object(request) if isinstance(request, keras.losses.Loss) else request


def _each(request: Any) -> list[Any]:
    """Return the losses of a request."""
    return [*request.values()] if isinstance(request, Mapping) else request if isinstance(request, list) else [request]


def _loss(loss: Any) -> Any:
    import keras

    if isinstance(loss, str):
        try:
            return losses.check_loss(loss)
        except ConfigurationError:
            return _loss(keras.losses.get(loss))
    if isinstance(loss, keras.losses.Loss):
        return _of_object(loss)
    if callable(loss):
        name = getattr(loss, "__name__", "")
        return name if name in losses.LOSSES and getattr(keras.losses, name, None) is loss else loss
    raise ConfigurationError(
        f"`compile` must give a loss for every output. Received: {loss!r}. Name all by `get_loss`, with a weight of "
        "0 by `get_loss_weights` for an output that does not count."
    )


def _of_object(loss: Any) -> Any:
    """Return a loss object as the function of each sample that it takes the mean of."""
    if loss.reduction in _OF_BATCH:
        return BatchLoss(loss, f"{type(loss).__name__}(reduction={loss.reduction!r})")
    if loss.reduction not in _MEANS:
        raise ConfigurationError(
            f"A loss must be the mean or the sum of a batch. Received: {type(loss).__name__} with "
            f"reduction={loss.reduction!r}. Leave the reduction out."
        )
    name = getattr(getattr(loss, "fn", None), "__name__", "")
    if type(loss).__module__.partition(".")[0] != "keras" or name not in losses.LOSSES:
        return _called(loss.call, type(loss).__name__)
    # Its configuration has not all of them.
    defaults = type(loss)()._fn_kwargs
    changed = [f"{key}={value!r}" for key, value in loss._fn_kwargs.items() if repr(value) != repr(defaults[key])]
    return VariedLoss(loss.call, name, f"{name}({', '.join(changed)})") if changed else name


def _called(function: Callable[[Any, Any], Any], name: str) -> Callable[[Any, Any], Any]:
    """Return a function with a name for messages."""

    def loss(y_true: Any, y_pred: Any) -> Any:
        return function(y_true, y_pred)

    loss.__name__ = name
    return loss
