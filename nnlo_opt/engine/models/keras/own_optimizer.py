"""Steps of an optimizer of Keras, outside of `fit`, on every backend."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.base.pulse import PULSE, SLOW
from nnlo_opt.core.models.layout import FloatVector, Layout
from nnlo_opt.engine.models.own_optimizer import Instead, refusal_of_state
from nnlo_opt.engine.models.plain_data import is_kept, plain

_SETTINGS = (FunctionType, BuiltinFunctionType, MethodType, partial, type)
#: arguments of an optimizer that clip
_CLIPPINGS = ("clipnorm", "global_clipnorm", "clipvalue")
#: attributes with the weight decay: Muon has another one for the weights that Adam trains
_DECAYS = {"weight_decay", "adam_weight_decay"}
#: takes a step from weights and gradient, and returns the new weights
Advance = Callable[[FloatVector, FloatVector], Any]


class KerasSteps:
    """Steps of a Keras optimizer on a model, whose variables it overwrites.

    Args:
        optimizer: optimizer of `compile`.
        variables: weights of the model.
        layout: their places in a vector.
        instead: options in place of its settings.

    Raises:
        ConfigurationError: the weights are not float32, or the optimizer has state that no checkpoint can hold.
    """

    def __init__(self, optimizer: Any, variables: Sequence[Any], layout: Layout, instead: Instead) -> None:
        import keras

        for variable in variables:
            if variable.dtype != "float32":
                raise ConfigurationError(
                    f"{type(optimizer).__name__} of `compile` needs weights in float32. Received: {variable.path} in "
                    f"{variable.dtype}. Compute in that type by a policy such as 'mixed_{variable.dtype}'."
                )
        self._optimizer = optimizer
        # Gradients are not scaled, and the average is kept beside the optimizer.
        optimizer.loss_scale_factor, optimizer.use_ema = None, False
        if instead.clips:
            for name in _CLIPPINGS:
                setattr(optimizer, name, None)
        if instead.weight_decay is not None:
            for name in _DECAYS & vars(optimizer).keys():
                setattr(optimizer, name, instead.weight_decay)
        if instead.no_decay is not None:
            pairs = zip(variables, layout.specs, strict=True)
            optimizer.exclude_from_weight_decay([v for v, spec in pairs if re.search(instead.no_decay, spec.name)])
        if instead.learning_rate is not None:
            _set_rate(optimizer, instead.learning_rate)
        if not optimizer.built:
            with keras.name_scope(optimizer.name, caller=optimizer):
                optimizer.build(variables)
        self.learning_rate = rate_of(optimizer)
        makers = {"tensorflow": _on_tensorflow, "jax": _on_jax, "torch": _on_torch}
        self._make: Callable[[], Advance] = partial(makers[keras.backend.backend()], optimizer, variables, layout)
        #: None before the first step
        self._advance: Advance | None = None
        self.state()

    def step(self, weights: FloatVector, gradient: FloatVector) -> None:
        if self._advance is None:
            PULSE.expect(SLOW, "is in the first step, which compiles the optimizer")
            self._advance = self._make()
        # Copies, as a framework may keep the memory of its arguments.
        np.copyto(weights, np.asarray(self._advance(weights.copy(), gradient.copy())))

    def scale_learning_rate(self, factor: float) -> None:
        optimizer = self._optimizer
        if _rate_variable(optimizer) is not None:
            optimizer.learning_rate = self.learning_rate * factor
        elif factor != 1:
            raise TrialError(f"The schedule inside of {type(optimizer).__name__} sets the learning rate, nothing else")

    def state(self) -> dict[str, Any]:
        from keras import ops

        values = [np.asarray(ops.convert_to_numpy(variable)) for variable in self._optimizer.variables]
        return {"variables": values, "attributes": dict(self._attributes())}

    def load_state(self, state: Mapping[str, Any]) -> None:
        for variable, value in zip(self._optimizer.variables, state["variables"], strict=True):
            variable.assign(value)
        for name, value in state["attributes"].items():
            setattr(self._optimizer, name, value)

    def _attributes(self) -> Iterator[tuple[str, Any]]:
        """Yield the attributes that an optimizer of the user has beside variables and settings."""
        import keras

        optimizer = self._optimizer
        if is_of_keras(optimizer):
            return
        known = vars(keras.optimizers.Optimizer(learning_rate=0.1))
        tracked = {id(variable) for variable in optimizer.variables}
        for name, value in vars(optimizer).items():
            leaves = [leaf for leaf in keras.tree.flatten(value) if leaf is not None]
            holds_variables = leaves and all(id(leaf) in tracked for leaf in leaves)
            if name in known or holds_variables or isinstance(value, _SETTINGS):
                continue
            if not is_kept(kept := plain(value)):
                raise refusal_of_state(optimizer, name, value)
            yield name, kept


def is_of_keras(value: Any) -> bool:
    """Return True for an object of a class of Keras."""
    return type(value).__module__.partition(".")[0] == "keras"


def rate_of(optimizer: Any) -> float:
    """Return the current learning rate."""
    from keras import ops

    # Keras keeps it in float32: 0.1 is 0.1 again.
    return float(str(np.float32(ops.convert_to_numpy(optimizer.learning_rate))))


def _rate_variable(optimizer: Any) -> Any | None:
    """Return the variable of the learning rate; None for a schedule."""
    import keras

    # Keras has no public access to it.
    rate = optimizer._learning_rate
    return rate if isinstance(rate, keras.Variable) else None


def _set_rate(optimizer: Any, rate: float) -> None:
    import keras

    if _rate_variable(optimizer) is not None:
        optimizer.learning_rate = rate
        return
    with keras.name_scope(optimizer.name, caller=optimizer):
        variable = keras.Variable(rate, name="learning_rate", dtype="float32", trainable=False)
    optimizer._track_variable(variable)
    optimizer._learning_rate = variable


# ---------------------------------------------------------------- backends


def _on_tensorflow(optimizer: Any, variables: Sequence[Any], layout: Layout) -> Advance:
    import tensorflow as tf

    from nnlo_opt.engine.models.keras.on_tensorflow import split

    def advance(weights: Any, gradient: Any) -> Any:
        for variable, value in zip(variables, split(weights, layout), strict=True):
            variable.assign(value)
        optimizer.apply(split(gradient, layout), variables)
        return tf.concat([tf.reshape(variable.value, [-1]) for variable in variables], 0)

    vector = tf.TensorSpec([layout.n_weights], tf.float32)
    concrete = tf.function(advance, input_signature=[vector, vector], autograph=False).get_concrete_function()
    variables_of_step = concrete.captured_inputs
    call = partial(tf.raw_ops.StatefulPartitionedCall, Tout=[tf.float32], f=concrete)
    # As in the engine: TensorFlow's own handling of the arguments takes longer than a small step.
    return lambda weights, gradient: call(args=[weights, gradient, *variables_of_step])[0]


def _on_jax(optimizer: Any, variables: Sequence[Any], layout: Layout) -> Advance:
    import jax
    import jax.numpy as jnp

    from nnlo_opt.engine.models.keras.on_jax import split

    def stepped(values: Sequence[Any], weights: Any, gradient: Any) -> tuple[Any, Any]:
        moved, values = optimizer.stateless_apply(values, split(gradient, layout), split(weights, layout))
        return jnp.concatenate([value.reshape(-1) for value in moved]), values

    compiled = jax.jit(stepped)

    def advance(weights: FloatVector, gradient: FloatVector) -> Any:
        moved, values = compiled([variable.value for variable in optimizer.variables], weights, gradient)
        for variable, value in zip(optimizer.variables, values, strict=True):
            variable.assign(value)
        return moved

    return advance


def _on_torch(optimizer: Any, variables: Sequence[Any], layout: Layout) -> Advance:
    import torch
    from keras import ops

    def advance(weights: FloatVector, gradient: FloatVector) -> Any:
        with torch.no_grad():
            for variable, value in zip(variables, layout.views(weights), strict=True):
                variable.assign(value)
            optimizer.apply([*map(ops.convert_to_tensor, layout.views(gradient))], variables)
            return torch.cat([variable.value.reshape(-1) for variable in variables]).cpu().numpy()

    return advance
