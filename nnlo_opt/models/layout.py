"""Layout of the weights of a model in one flat vector."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatVector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """Name (unique in the model) and shape of one array of a model."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Arrays of a model in the order in which they lie in a flat vector, C-contiguous and one after the other."""

    specs: tuple[WeightSpec, ...]

    @property
    def n_weights(self) -> int:
        return sum(spec.size for spec in self.specs)

    @property
    def slices(self) -> tuple[slice, ...]:
        """Position of each array in the vector."""
        stops = tuple(accumulate(spec.size for spec in self.specs))
        return tuple(slice(start, stop) for start, stop in zip((0, *stops), stops, strict=False))

    def views(self, vector: FloatVector) -> list[FloatVector]:
        """Return the arrays of `vector` (n_weights,) as views of their shapes, without a copy."""
        check_vector(vector, self.n_weights)
        return [vector[part].reshape(spec.shape) for part, spec in zip(self.slices, self.specs, strict=True)]

    def gather(self, arrays: Sequence[NDArray[Any]], out: FloatVector) -> None:
        """Copy `arrays`, with the shapes of this layout and any float type, into `out` (n_weights,)."""
        for view, array in zip(self.views(out), arrays, strict=True):
            view[...] = array


def check_counters(given: list[list[int]], known: list[list[int]]) -> None:
    """Raise ValueError unless a discrete state has as many integers in each list as the `known` one."""
    if [len(value) for value in given] != (expected := [len(value) for value in known]):
        raise ValueError(f"Counters of {expected} numbers are expected. Received: {given}.")


def check_vector(vector: FloatVector, n: int) -> None:
    """Raise ValueError unless the shape of `vector` is (n,)."""
    if vector.shape != (n,):
        raise ValueError(f"A vector of shape ({n},) is expected. Received: {vector.shape}.")
