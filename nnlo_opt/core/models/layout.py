"""Layout of a model's weights in one flat vector."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatVector = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class WeightSpec:
    """Name (unique in the model) and shape of one array of a model.

    >>> WeightSpec("kernel", (2, 3)).size
    6
    """

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """Arrays of a model in their order in a flat vector: C-contiguous, one after the other.

    >>> layout = Layout((WeightSpec("kernel", (2, 1)), WeightSpec("bias", (1,))))
    >>> layout.views(np.arange(3, dtype=np.float32))[1]
    array([2.], dtype=float32)

    Raises:
        ValueError: by `views` and `gather`, for a vector or arrays of the wrong shape.
    """

    specs: tuple[WeightSpec, ...]

    @property
    def n_weights(self) -> int:
        return sum(spec.size for spec in self.specs)

    @property
    def slices(self) -> tuple[slice, ...]:
        """Position of each array in the vector."""
        return slices_of(spec.size for spec in self.specs)

    def views(self, vector: FloatVector) -> list[FloatVector]:
        """Return the arrays of `vector` (n_weights,) as views of their shapes, without a copy."""
        check_vector(vector, self.n_weights)
        return [vector[part].reshape(spec.shape) for part, spec in zip(self.slices, self.specs, strict=True)]

    def gather(self, arrays: Sequence[NDArray[Any]], out: FloatVector) -> None:
        """Copy `arrays`, of this layout's shapes and any float type, into `out` (n_weights,)."""
        for view, array in zip(self.views(out), arrays, strict=True):
            view[...] = array


class FlatWeights:
    """Helper for adapters: the weights to compute with, either its own vector or a borrowed one.

    >>> weights = FlatWeights(np.zeros(2, np.float32))
    >>> weights.write_weights(np.ones(2, np.float32))
    >>> weights.own_weights
    array([1., 1.], dtype=float32)

    Args:
        own: the adapter's own vector (n_weights,).

    Raises:
        ValueError: by its methods, for a vector of the wrong length.
    """

    def __init__(self, own: FloatVector) -> None:
        self.n_weights = len(own)
        #: own vector (n_weights,), and the vector of the next computation, own or borrowed. Do not rebind
        #: `own_weights`: the framework may alias its memory
        self.own_weights = self._weights = own

    def read_weights(self, out: FloatVector) -> None:
        copy_vector(self._weights, out)

    def write_weights(self, vector: FloatVector) -> None:
        copy_vector(vector, self.own_weights)
        self._weights = self.own_weights

    def borrow_weights(self, vector: FloatVector) -> None:
        check_vector(vector, self.n_weights)
        self._weights = vector


def slices_of(sizes: Iterable[int]) -> tuple[slice, ...]:
    """Return the slices of consecutive parts of these sizes."""
    stops = (0, *accumulate(sizes))
    return tuple(slice(start, stop) for start, stop in pairwise(stops))


def check_counters(given: list[list[int]], known: list[list[int]]) -> None:
    """Raise ValueError unless a discrete state has the same lengths as the `known` one."""
    if [len(value) for value in given] != (expected := [len(value) for value in known]):
        raise ValueError(f"Counters of {expected} numbers are expected. Received: {given}.")


def check_vector(vector: FloatVector, n: int) -> None:
    """Raise ValueError unless the shape of `vector` is (n,)."""
    if vector.shape != (n,):
        raise ValueError(f"A vector of shape ({n},) is expected. Received: {vector.shape}.")


def copy_vector(source: FloatVector, target: FloatVector) -> None:
    """Copy `source` into `target`; raise ValueError unless both have the same shape (n,)."""
    check_vector(source, len(target))
    np.copyto(target, source)
