"""Trees of arrays: samples of models with several inputs or outputs.

A tree is a leaf or a list of trees. For a model with one input the tree is a leaf, an array (n, ...); for several
inputs it is a list of arrays, nested like the groups of an HDF5 file. A tree of shapes has the same lists with tuples
as leaves.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

#: array (n, ...), or a list of trees of arrays with the same n
Arrays: TypeAlias = Any
#: shape of one sample, without n, or a list of trees of shapes
Shapes: TypeAlias = Any


def leaves(tree: Any) -> Iterator[Any]:
    """Yield all leaves in order."""
    if isinstance(tree, list):
        for branch in tree:
            yield from leaves(branch)
    else:
        yield tree


def map_tree(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return the tree of `function(leaf, *leaves of other trees)`; ValueError if the trees differ in form."""
    trees = tree, *others
    if not any(isinstance(one, list) for one in trees):
        return function(*trees)
    if not all(isinstance(one, list) and len(one) == len(tree) for one in trees):
        raise ValueError(f"Trees of the same form are expected. Received: {trees}.")
    return [map_tree(function, *branches) for branches in zip(*trees, strict=True)]


def n_samples(tree: Arrays) -> int:
    """Return the number of samples in a tree of arrays; ValueError if it differs between arrays."""
    counts = {len(array) for array in leaves(tree)}
    if len(counts) != 1:
        raise ValueError(f"All arrays must have one row for each sample. Received: {sorted(counts)} rows.")
    return counts.pop()


def shapes_of(tree: Arrays) -> Shapes:
    """Return the tree of the shapes of one sample."""
    return map_tree(lambda array: tuple(array.shape[1:]), tree)
