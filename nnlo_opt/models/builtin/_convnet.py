"""Convolutional classifier of the built-in models."""

from collections.abc import Sequence
from typing import Any


def convnet(
    input_shape: tuple[int, int, int],
    filters: Sequence[int],
    kernel_size: int,
    pool_size: int,
    dense: int,
    dropout: float,
) -> Any:
    """Return a classifier of images: two convolutions and a pooling for each entry of `filters`, two dense layers.

    Args:
        input_shape: height, width and channels of an image.
        filters: filters of the convolutions of each stage.
        kernel_size: height and width of a kernel, in pixels.
        pool_size: height and width of a pooling, in pixels.
        dense: units of the first dense layer; the second has one for each of ten classes.
        dropout: share of units dropped before the last layer; half of it after each stage.
    """
    import keras
    from keras import layers

    model = keras.Sequential([keras.Input(input_shape)])
    for n_filters in filters:
        # Two "valid" convolutions would use up the small images after the first stage.
        padding = "valid" if len(filters) == 1 else "same"
        model.add(layers.Conv2D(n_filters, kernel_size, padding=padding, activation="relu"))
        model.add(layers.Conv2D(n_filters, kernel_size, padding=padding, activation="relu"))
        model.add(layers.MaxPooling2D(pool_size))
        model.add(layers.Dropout(dropout / 2))
    for layer in (
        layers.Flatten(),
        layers.Dense(dense, activation="relu"),
        layers.Dropout(dropout),
        layers.Dense(10, activation="softmax"),
    ):
        model.add(layer)
    return model
