"""Keras adapters for tests, made without data from a model with its losses."""

from typing import Any

from nnlo_opt.core.base.trees import Shapes
from nnlo_opt.engine.models.keras import framework as keras_model
from nnlo_opt.engine.models.keras.adapter import KerasAdapter
from nnlo_opt.engine.models.losses import Labels, LossRequest, WeightRequest, make_terms


def keras_adapter(
    model: Any, loss: LossRequest = None, weights: WeightRequest = None, *, feature_shape: Shapes = None, **options: Any
) -> KerasAdapter:
    """Return an adapter for labels that fit: class numbers for a sparse loss, else labels of the outputs' shapes.

    Args:
        model: Keras model.
        loss: losses of the outputs; None to choose them.
        weights: weights of the losses; None for 1 each.
        feature_shape: shape of one sample, for a model that does not declare its inputs.
        options: further arguments of `keras_model.adapter`.
    """
    shapes = feature_shape or [tuple(tensor.shape[1:]) for tensor in model.inputs]
    outputs = keras_model.describe_outputs(model, shapes)
    losses = loss if isinstance(loss, list) else [loss] * len(outputs)
    labels = [
        Labels(output.shape[:-1] if name == "sparse_categorical_crossentropy" else output.shape, "float32")
        for output, name in zip(outputs, losses, strict=True)
    ]
    terms, _ = make_terms(loss, weights, outputs, labels, keras_model.RULES)
    return keras_model.adapter(model, terms, **options)
