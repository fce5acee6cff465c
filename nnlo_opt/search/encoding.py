"""Points as a surrogate wants them: rows of columns of order one, whatever kinds of parameters there are."""

from collections.abc import Sequence

import numpy as np

from nnlo_opt.space.parameters import Categorical, Constant
from nnlo_opt.space.space import Point, Space


class Encoding:
    """Columns of a space: the quantile of an ordered value, and a column for every category of an unordered one.

    An Integer's column has its own values only, never one between them, so that a kernel sees what a trial sees
    (Garrido-Merchan and Hernandez-Lobato, 2020, Neurocomputing 380, 20). Two different categories are one apart. A
    parameter that a point does not have lies in the middle, and as far from each category. A Constant has no column.
    """

    def __init__(self, space: Space) -> None:
        self.space = space
        #: (width,) int: the parameter of each column
        groups = [i for i, p in enumerate(space.parameters) for _ in range(_n_columns(p))]
        self.groups = np.array(groups or [0], dtype=int)  # no surrogate takes points without columns
        #: for each parameter its first column
        self.first = np.searchsorted(self.groups, np.arange(len(space.parameters)))

    def columns(self, points: Sequence[Point]) -> np.ndarray:
        """(n, width) float64."""
        encoded = np.zeros((len(points), len(self.groups)))
        for first, parameter in zip(self.first.tolist(), self.space.parameters, strict=True):
            name = parameter.name
            if isinstance(parameter, Constant):
                continue
            if isinstance(parameter, Categorical):
                for row, point in enumerate(points):
                    if name in point:
                        encoded[row, first + parameter.key(point[name])] = np.sqrt(0.5)
            else:
                encoded[:, first] = [parameter.to_unit(p[name]) if name in p else 0.5 for p in points]
        return encoded

    def units(self, point: Point) -> np.ndarray:
        """(n_parameters,) float64: the quantiles of a point, 0.5 for a parameter that it does not have."""
        return np.array([p.to_unit(point[p.name]) if p.name in point else 0.5 for p in self.space.parameters])


def _n_columns(parameter: object) -> int:
    if isinstance(parameter, Constant):
        return 0
    return parameter.n_values if isinstance(parameter, Categorical) else 1
