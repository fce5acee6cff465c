"""Trees of arrays: what a model of several inputs or outputs is fed with.

A tree is a leaf or a list of trees. A model of one input takes a leaf, an array (n, ...); one of several inputs takes
a list of them, nested as the groups of an HDF5 file are. A tree of shapes has the same lists, and tuples as leaves.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

#: an array (n, ...), or a list of such trees with the same n
Arrays: TypeAlias = Any
#: the shape of one sample, without n, or a list of such trees
Shapes: TypeAlias = Any


def leaves(tree: Any) -> Iterator[Any]:
    """All leaves, first to last."""
    if isinstance(tree, list):
        for branch in tree:
            yield from leaves(branch)
    else:
        yield tree


def map_tree(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The tree of `function(leaf, *leaves of the others at the same place)`; ValueError unless all are alike."""
    if not isinstance(tree, list):
        if any(isinstance(other, list) for other in others):
            raise ValueError(f"Trees of the same form are expected. Received: {(tree, *others)}.")
        return function(tree, *others)
    if any(not isinstance(other, list) or len(other) != len(tree) for other in others):
        raise ValueError(f"Trees of the same form are expected. Received: {(tree, *others)}.")
    return [map_tree(function, *branches) for branches in zip(tree, *others, strict=True)]


def n_samples(tree: Arrays) -> int:
    """Samples in a tree of arrays; ValueError where its arrays disagree."""
    counts = {len(array) for array in leaves(tree)}
    if len(counts) != 1:
        raise ValueError(f"All arrays must have one row a sample. Received: {sorted(counts)} rows.")
    return counts.pop()


def shapes_of(tree: Arrays) -> Shapes:
    """The tree of the shapes of one sample."""
    return map_tree(lambda array: tuple(array.shape[1:]), tree)
