"""Restores tuples in points for user code: in JSON, so in journals and messages, they are lists.

The JSON of a parameter with tuples among its categories has their paths under `tuples`: the indices that lead to each
from the list of categories.
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from typing import Any

from nnlo_opt.core.space.values import text

#: key of the paths in the JSON of a parameter
TUPLES = "tuples"


class Tuples:
    """Tuples of a search space; converts points to what the user wrote.

    >>> Tuples([Categorical([(3, 3), [5, 5]], name="kernel").to_json()]).given({"kernel": [3, 3], "n": 1})
    {'kernel': (3, 3), 'n': 1}

    Args:
        parameters: JSON of parameters; those without tuples are ignored.
    """

    def __init__(self, parameters: Iterable[Mapping[str, Any]] = ()) -> None:
        #: parameter -> JSON text of a category -> the category
        self._written: dict[str, dict[str, Any]] = {}
        for parameter in parameters:
            if TUPLES in parameter:
                # A later version may write another form; then the user gets lists.
                with suppress(LookupError, TypeError, ValueError, RecursionError):
                    categories = parameter.get("categories") or [parameter["value"]]
                    written = with_tuples(categories, parameter[TUPLES])
                    self._written[parameter["name"]] = {text(category): category for category in written}

    def given(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy of a point with the categories as the user wrote them."""
        values = dict(point)
        for name in self._written.keys() & values.keys():
            values[name] = deepcopy(self._written[name].get(text(values[name]), values[name]))
        return values


def tuple_paths(value: Any) -> list[list[int]]:
    """Return the path of every tuple in a value, outermost first."""
    inner = value if isinstance(value, list | tuple) else ()
    below = [[index, *path] for index, item in enumerate(inner) for path in tuple_paths(item)]
    return [[]] * isinstance(value, tuple) + below


def with_tuples(categories: Sequence[Any], paths: Iterable[Sequence[int]]) -> list[Any]:
    """Return categories of JSON with a tuple at each path.

    Raises:
        LookupError, TypeError: a path leads nowhere.
    """
    made = [*categories]
    for path in sorted(paths, key=len, reverse=True):  # from the inside to the outside
        made = _with_tuple(made, path)
    return made


def _with_tuple(value: Any, path: Sequence[int]) -> Any:
    if not path:
        return tuple(value)
    index, *rest = path
    changed = [*value]
    changed[index] = _with_tuple(value[index], rest)
    return tuple(changed) if isinstance(value, tuple) else changed
