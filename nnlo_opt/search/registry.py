"""Search algorithms by name, and the options each of them has."""

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.search.base import SearchAlgorithm
from nnlo_opt.search.random import RandomSearch
from nnlo_opt.search.start_points import StartPointSearch, check_start_points
from nnlo_opt.space.space import Space

SURROGATES = ("gp", "et", "rf", "gbrt")
ACQUISITIONS = ("ei", "lcb", "pi")
#: options that every algorithm takes
COMMON_OPTIONS = ("start_points",)


def make_search(name: str, space: Space, seed: int, options: Mapping[str, Any]) -> SearchAlgorithm:
    """The search algorithm called `name`; ConfigurationError for a name, seed or option that there is not.

    Options: `start_points` of all, a list of points to be tried first; `n_initial_points` of "bayesian" and
    "bayesian-skopt" (10 unless given); `surrogate` and `acquisition` of "bayesian-skopt"; `population` of "genetic".
    """
    algorithm = _ALGORITHMS.get(name)
    if algorithm is None:
        raise ConfigurationError(
            f"The search algorithm must be one of {_listed(search_names())}. Received: {name!r}. Choose one of these."
        )
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ConfigurationError(f"The seed must be an integer, at least 0. Received: {seed!r}. Choose another one.")
    unknown = [option for option in options if option not in (*algorithm.options, *COMMON_OPTIONS)]
    if unknown:
        known = (
            f"must be one of {_listed(algorithm.options)}" if algorithm.options else "must be left out, as it has none"
        )
        raise ConfigurationError(
            f'An option of the search algorithm "{name}" {known}. Received: {_listed(unknown)}. Remove it.'
        )
    own = {option: _checked(option, value) for option, value in options.items() if option not in COMMON_OPTIONS}
    if algorithm.package and importlib.util.find_spec(algorithm.package) is None:
        raise ConfigurationError(
            f'The search algorithm "{name}" needs the package {algorithm.package}. Received: an installation without '
            "it; install the extra [optuna], or choose another algorithm."
        )
    search = algorithm.make(space, seed, own)
    points = check_start_points(space, options.get("start_points", []))
    return StartPointSearch(search, points) if points else search


def search_names() -> tuple[str, ...]:
    """Names that `make_search` knows."""
    return tuple(_ALGORITHMS)


def options_of(name: str) -> tuple[str, ...]:
    """The options that the algorithm called `name` has beside the common ones; none where there is no such."""
    return _ALGORITHMS[name].options if name in _ALGORITHMS else ()


def _checked(option: str, value: Any) -> Any:
    choices = {"surrogate": SURROGATES, "acquisition": ACQUISITIONS}.get(option)
    if choices:
        if value not in choices:
            raise ConfigurationError(f"`{option}` must be one of {_listed(choices)}. Received: {value!r}. Choose one.")
        return value
    least, default = {"n_initial_points": (1, "the default"), "population": (2, "10")}[option]
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigurationError(
            f"`{option}` must be a whole number, at least {least}. Received: {value!r}. Leave it out for {default}."
        )
    return value


# What an algorithm needs is imported when it is wanted: scikit-optimize alone costs 3 CPU s and 170 MB.


def _make_bayesian(space: Space, seed: int, options: dict[str, Any]) -> SearchAlgorithm:
    from nnlo_opt.search.bayesian import BayesianSearch

    return BayesianSearch(space, seed, **options)


def _make_skopt(space: Space, seed: int, options: dict[str, Any]) -> SearchAlgorithm:
    from nnlo_opt.search.skopt_search import SkoptSearch

    return SkoptSearch(space, seed, **options)


def _make_genetic(space: Space, seed: int, options: dict[str, Any]) -> SearchAlgorithm:
    from nnlo_opt.search.genetic import GeneticSearch

    return GeneticSearch(space, seed, **options)


def _make_sobol(space: Space, seed: int, options: dict[str, Any]) -> SearchAlgorithm:
    from nnlo_opt.search.sobol import SobolSearch

    return SobolSearch(space, seed)


def _make_tpe(space: Space, seed: int, options: dict[str, Any]) -> SearchAlgorithm:
    from nnlo_opt.search.optuna_search import make_tpe

    return make_tpe(space, seed)


def _make_gp(space: Space, seed: int, options: dict[str, Any]) -> SearchAlgorithm:
    from nnlo_opt.search.optuna_search import make_gp

    return make_gp(space, seed)


def _make_cmaes(space: Space, seed: int, options: dict[str, Any]) -> SearchAlgorithm:
    from nnlo_opt.search.cmaes_search import CmaEsSearch

    return CmaEsSearch(space, seed)


def _make_random(space: Space, seed: int, options: dict[str, Any]) -> SearchAlgorithm:
    return RandomSearch(space, seed)


@dataclass(frozen=True, slots=True)
class _Algorithm:
    make: Callable[[Space, int, dict[str, Any]], SearchAlgorithm]
    options: tuple[str, ...] = ()
    #: an optional package that it needs
    package: str = ""


def _listed(names: Any) -> str:
    return ", ".join(f'"{name}"' for name in names)


_ALGORITHMS: dict[str, _Algorithm] = {
    "bayesian": _Algorithm(_make_bayesian, ("n_initial_points",)),
    "bayesian-skopt": _Algorithm(_make_skopt, ("n_initial_points", "surrogate", "acquisition")),
    "genetic": _Algorithm(_make_genetic, ("population",)),
    "random": _Algorithm(_make_random),
    "sobol": _Algorithm(_make_sobol),
    "tpe": _Algorithm(_make_tpe, package="optuna"),
    "gp": _Algorithm(_make_gp, package="optuna"),
    "cmaes": _Algorithm(_make_cmaes, package="cmaes"),
}
