"""Positions of a model's arrays in its flat vectors, for update rules that work layer by layer."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple


class Layer(NamedTuple):
    """One array of a model.

    >>> layers_of([("kernel", (2, 3)), ("bias", (3,))])[1]
    Layer(name='bias', shape=(3,), part=slice(6, 9, None))
    """

    name: str
    shape: tuple[int, ...]
    #: its slice of a vector of all weights, in which it is C-contiguous
    part: slice


def layers_of(arrays: Iterable[Sequence[Any]]) -> tuple[Layer, ...]:
    """Return the layers for consecutive arrays, given as (name, shape)."""
    layers, end = [], 0
    for name, shape in arrays:
        start, end = end, end + math.prod(shape)
        layers.append(Layer(name, tuple(shape), slice(start, end)))
    return tuple(layers)


def whole_layers(layers: Iterable[Layer], size: int) -> Iterator[slice]:
    """Yield slices of neighbouring layers with at least `size` weights together; the last may have fewer."""
    start = end = 0
    for layer in layers:
        end = layer.part.stop
        if end - start >= size:
            yield slice(start, end)
            start = end
    if end > start:
        yield slice(start, end)


def layers_within(layers: Iterable[Layer], block: slice) -> tuple[Layer, ...]:
    """Return the layers in a block of `whole_layers`, with their slices of the block."""
    return tuple(
        layer._replace(part=slice(layer.part.start - block.start, layer.part.stop - block.start))
        for layer in layers
        if block.start <= layer.part.start and layer.part.stop <= block.stop
    )
