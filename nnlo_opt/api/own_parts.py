"""Search algorithm or pruner of one's own among the arguments of a search: `hyper_opt=Mine()`, `pruner=Mine()`."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.run.options.values import Options
from nnlo_opt.search.own import OwnParts, check_own, name_of
from nnlo_opt.search.pruning import PruningPlan


def with_own(given: Mapping[str, Any], read: Callable[[Mapping[str, Any]], Options]) -> Options:
    """Return the options that `read` makes of `given`, in which objects stand in the place of names.

    Raises:
        ConfigurationError: an object lacks a method, or there are options of a pruner beside an object.
    """
    objects = {name: given[name] for name in ("hyper_opt", "pruner") if not isinstance(given.get(name), str | None)}
    own = OwnParts(algorithm=objects.get("hyper_opt"), pruner=objects.get("pruner"))
    check_own(own)
    names = {name: value for name, value in given.items() if name not in objects}
    if own.pruner is not None:
        if of_pruner := [name for name in given if name.startswith("pruner_")]:
            raise ConfigurationError(
                f"`{of_pruner[0]}` is an option of a pruner of this package. Received: it with {own.pruner!r}; give "
                "your pruner its settings when you make it."
            )
        names["pruner"] = "median"  # what is checked holds for every pruner that does not pause
    options = replace(read(names), own=own)
    if own.algorithm is not None:
        options = replace(options, search=replace(options.search, algorithm=name_of(own.algorithm)))
    if own.pruner is not None:
        options = replace(options, plan=replace(options.plan, pruning=PruningPlan(name=name_of(own.pruner))))
    return options
