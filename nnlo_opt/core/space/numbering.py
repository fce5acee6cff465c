"""Numbers the points of a finite space, conditions included.

Conditional parameters form trees: a parameter has one branch per value, and below a branch are the parameters whose
conditions that value meets. The points of a tree are the sum over its branches, the points of a space the product over
its trees.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from nnlo_opt.core.space.parameters import Parameter
from nnlo_opt.core.space.values import Value, thawed


@dataclass(frozen=True, slots=True)
class Tree:
    """Parameter with finitely many values, and the trees below some of them."""

    parameter: Parameter
    #: indices of the values that have trees below them, ascending
    branches: tuple[int, ...]
    #: trees below each of these values
    below: tuple[tuple["Tree", ...], ...]
    #: number of points before each branch and, as the last entry, in total
    before: tuple[int, ...]

    @property
    def n_points(self) -> int:
        return self.before[-1]

    def point_at(self, index: int) -> dict[str, Value]:
        """Return point number `index` of this tree: values in their order.

        Under a branch the last parameter varies fastest.
        """
        branch = bisect_right(self.before[:-1], index) - 1
        if branch >= 0 and index < self.before[branch] + count(self.below[branch]):
            value = self.parameter.value_at(self.branches[branch])
            return {self.parameter.name: value} | points_at(self.below[branch], index - self.before[branch])
        # Each value between two branches is one point.
        start = 0 if branch < 0 else self.branches[branch] + 1
        first = 0 if branch < 0 else self.before[branch] + count(self.below[branch])
        return {self.parameter.name: self.parameter.value_at(start + index - first)}


def trees(parameters: Sequence[Parameter]) -> tuple[Tree, ...] | None:
    """Return the trees of the parameters without a condition, in their order; None if a parameter is continuous."""
    if any(parameter.n_values is None for parameter in parameters):
        return None
    return tuple(_tree(parameter, parameters) for parameter in parameters if parameter.condition is None)


def count(forest: Sequence[Tree]) -> int:
    """Return the number of points of several trees together."""
    return math.prod(tree.n_points for tree in forest)


def points_at(forest: Sequence[Tree], index: int) -> dict[str, Value]:
    """Return point number `index` of several trees together; the last tree varies fastest."""
    parts: list[dict[str, Value]] = []
    for tree in reversed(forest):
        index, digit = divmod(index, tree.n_points)
        parts.append(tree.point_at(digit))
    return {name: value for part in reversed(parts) for name, value in part.items()}


def _tree(parameter: Parameter, parameters: Sequence[Parameter]) -> Tree:
    below: dict[int, list[Tree]] = {}
    for child in parameters:
        if child.condition is not None and child.condition.parent == parameter.name:
            tree = _tree(child, parameters)
            for branch in {parameter.index(thawed(value)) for value in child.condition.values}:
                below.setdefault(branch, []).append(tree)
    branches = tuple(sorted(below))
    extra = [0, *accumulate(count(below[branch]) - 1 for branch in branches)]
    before = [branch + more for branch, more in zip((*branches, parameter.n_values or 0), extra, strict=True)]
    return Tree(parameter, branches, tuple(tuple(below[branch]) for branch in branches), tuple(before))
