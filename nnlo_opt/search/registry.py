"""Registry of search algorithms by name, with the options of each."""

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.records import without_collection
from nnlo_opt.search.base import ACQUISITIONS, SURROGATES, SearchAlgorithm
from nnlo_opt.search.genetic import DEFAULT_POPULATION
from nnlo_opt.search.grid import DEFAULT_POINTS
from nnlo_opt.search.own import is_own, own_search
from nnlo_opt.search.start_points import StartPointSearch, check_start_points
from nnlo_opt.space.space import Space
from nnlo_opt.space.values import check_whole, is_whole

#: options that every algorithm takes
COMMON_OPTIONS = ("start_points",)


def make_search(name: str | SearchAlgorithm, space: Space, seed: int, options: Mapping[str, Any]) -> SearchAlgorithm:
    """Return the search algorithm called `name`.

    Args:
        name: one of `search_names()`, or one's own (`search.own`): FILE.py:CLASS, or an object.
        space: search space of all points.
        seed: at least 0.
        options: `start_points` of all algorithms, a list of points to be tried first; `n_initial_points` of "bayesian"
            and "bayesian-skopt" (10 by default); `surrogate` and `acquisition` of "bayesian-skopt"; `population` of
            "genetic"; `grid_points` of "grid".

    Raises:
        ConfigurationError: for an unknown name or option, or an invalid seed.
    """
    if not isinstance(name, str) or is_own(name):
        search = own_search(name, space, seed)
    else:
        search = _make_known(name, space, seed, options)
    points = check_start_points(space, options.get("start_points", []))
    return StartPointSearch(search, points) if points else search


def _make_known(name: str, space: Space, seed: int, options: Mapping[str, Any]) -> SearchAlgorithm:
    algorithm = _ALGORITHMS.get(name)
    if algorithm is None:
        raise ConfigurationError(
            f"The search algorithm must be one of {_listed(search_names())}. Received: {name!r}. Choose one of these."
        )
    if not is_whole(seed, 0):
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
            f'The search algorithm "{name}" needs the package {algorithm.package}. It is not installed: `pip install '
            "'nnlo_opt[optuna]'`, or choose another algorithm."
        )
    with without_collection():  # SciPy alone makes a hundred thousand objects
        module = importlib.import_module(_ALGORITHMS[name].module)
    search: SearchAlgorithm = getattr(module, algorithm.maker)(space, seed, **own)
    return search


def search_names() -> tuple[str, ...]:
    """Return the names that `make_search` accepts."""
    return tuple(_ALGORITHMS)


def options_of(name: str) -> tuple[str, ...]:
    """Return the options of the algorithm called `name`, without the common ones; none for an unknown name."""
    return _ALGORITHMS[name].options if name in _ALGORITHMS else ()


def _checked(option: str, value: Any) -> Any:
    choices = {"surrogate": SURROGATES, "acquisition": ACQUISITIONS}.get(option)
    if choices:
        if value not in choices:
            raise ConfigurationError(f"`{option}` must be one of {_listed(choices)}. Received: {value!r}. Choose one.")
        return value
    least, default = {
        "n_initial_points": (1, "the default"),
        "population": (2, DEFAULT_POPULATION),
        "grid_points": (1, DEFAULT_POINTS),
    }[option]
    check_whole(option, value, least, remedy=f" Leave it out for {default}.")
    return value


@dataclass(frozen=True, slots=True)
class _Algorithm:
    """A search algorithm, imported when it is made: scikit-optimize alone costs 3 CPU s and 170 MB."""

    module: str
    #: name of the class or function in `module` that makes the algorithm
    maker: str
    options: tuple[str, ...] = ()
    #: optional package that the algorithm needs
    package: str = ""


def _listed(names: Any) -> str:
    return ", ".join(f'"{name}"' for name in names)


_ALGORITHMS = {
    "bayesian": _Algorithm("nnlo_opt.search.bayesian", "BayesianSearch", ("n_initial_points",)),
    "bayesian-skopt": _Algorithm(
        "nnlo_opt.search.skopt_search", "SkoptSearch", ("n_initial_points", "surrogate", "acquisition")
    ),
    "genetic": _Algorithm("nnlo_opt.search.genetic", "GeneticSearch", ("population",)),
    "random": _Algorithm("nnlo_opt.search.random", "RandomSearch"),
    "sobol": _Algorithm("nnlo_opt.search.sobol", "SobolSearch"),
    "tpe": _Algorithm("nnlo_opt.search.optuna_search", "make_tpe", package="optuna"),
    "gp": _Algorithm("nnlo_opt.search.optuna_search", "make_gp", package="optuna"),
    "cmaes": _Algorithm("nnlo_opt.search.cmaes_search", "CmaEsSearch", package="cmaes"),
    "grid": _Algorithm("nnlo_opt.search.grid", "GridSearch", ("grid_points",)),
}
