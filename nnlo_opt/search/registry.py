"""Search algorithms by name."""

from collections.abc import Callable, Mapping
from typing import Any

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.search.base import SearchAlgorithm
from nnlo_opt.search.random import RandomSearch
from nnlo_opt.space.space import Space


def make_search(name: str, space: Space, seed: int, options: Mapping[str, Any]) -> SearchAlgorithm:
    """The search algorithm called `name`; ConfigurationError for a name, seed or option that there is not.

    Options: `n_initial_points` of "bayesian" (10 unless given); "random" has none.
    """
    if name not in _MAKERS:
        raise ConfigurationError(
            f"The search algorithm must be one of {_listed(search_names())}. Received: {name!r}. Choose one of these."
        )
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigurationError(f"The seed must be an integer, at least 0. Received: {seed!r}. Choose another one.")
    return _MAKERS[name](space, seed, dict(options))


def search_names() -> tuple[str, ...]:
    """Names that `make_search` knows."""
    return tuple(_MAKERS)


def _make_bayesian(space: Space, seed: int, options: dict[str, Any]) -> SearchAlgorithm:
    n_initial_points = options.pop("n_initial_points", 10)
    _refuse_others(options, "bayesian", ("n_initial_points",))
    if isinstance(n_initial_points, bool) or not isinstance(n_initial_points, int) or n_initial_points < 1:
        raise ConfigurationError(
            f"`n_initial_points` must be at least 1. Received: {n_initial_points!r}. Leave it out for 10."
        )
    from nnlo_opt.search.skopt_search import BayesianSearch  # 3 CPU s and 170 MB, for those who want it

    return BayesianSearch(space, seed, n_initial_points)


def _make_random(space: Space, seed: int, options: dict[str, Any]) -> SearchAlgorithm:
    _refuse_others(options, "random", ())
    return RandomSearch(space, seed)


def _refuse_others(options: dict[str, Any], name: str, known: tuple[str, ...]) -> None:
    if options:
        allowed = f"must be one of {_listed(known)}" if known else "must be left out, as it has none"
        raise ConfigurationError(
            f'An option of the search algorithm "{name}" {allowed}. Received: {_listed(options)}. Remove it.'
        )


def _listed(names: Any) -> str:
    return ", ".join(f'"{name}"' for name in names)


_MAKERS: dict[str, Callable[[Space, int, dict[str, Any]], SearchAlgorithm]] = {
    "bayesian": _make_bayesian,
    "random": _make_random,
}
