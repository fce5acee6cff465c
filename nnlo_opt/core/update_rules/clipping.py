"""Clips gradients, with the formulas of Keras 3: every array or all of them by their norm, or every number.

A gradient g whose norm n is above the limit c becomes c / n g. If n is not finite, all of it becomes NaN, which the
master sees in the weights.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.core.update_rules.layers import Layer
from nnlo_opt.core.update_rules.vectors import FloatVector

#: options, of which a training has at most one
CLIPPINGS = ("clip_norm", "global_clip_norm", "clip_value")


class Clipping:
    """One of `CLIPPINGS` with its limit, for a model of these layers."""

    def __init__(self, name: str, limit: float, layers: Sequence[Layer]) -> None:
        self._limit = limit
        n_weights = layers[-1].part.stop if layers else 0
        #: parts of a gradient that are scaled by their norms; none if numbers are clipped one by one
        self.parts: Sequence[slice] = {
            "clip_norm": [layer.part for layer in layers],
            "global_clip_norm": [slice(0, n_weights)],
            "clip_value": [],
        }[name]

    def clip(self, gradient: FloatVector) -> None:
        """Clip all of a gradient, float32 (n_weights,), in place."""
        everything = slice(0, len(gradient))
        with np.errstate(all="ignore"):
            self.scale(gradient, everything, self.squares(gradient, everything))

    def squares(self, gradient: FloatVector, within: slice) -> NDArray[np.float64]:
        """Return the squared norms of `parts`, as far as they are `within` a slice of the gradient."""
        found = np.zeros(len(self.parts))
        for number, part in enumerate(self.parts):
            own = gradient[max(part.start, within.start) : min(part.stop, within.stop)]
            found[number] = np.dot(own, own)
        return found

    def scale(self, gradient: FloatVector, within: slice, squares: NDArray[np.float64]) -> None:
        """Clip a slice of the gradient in place; `squares`: those of the whole `parts`."""
        if not self.parts:
            own = gradient[within]
            np.clip(own, -self._limit, self._limit, out=own)
        for part, square in zip(self.parts, squares.tolist(), strict=True):
            factor = self._limit / max(math.sqrt(square), self._limit) if math.isfinite(square) else math.nan
            if factor != 1.0:
                gradient[max(part.start, within.start) : min(part.stop, within.stop)] *= factor
