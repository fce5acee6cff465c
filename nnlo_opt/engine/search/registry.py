"""Registry of search algorithms by name, with the options of each."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nnlo_opt.core.base.errors import require_package
from nnlo_opt.core.base.records import without_collection
from nnlo_opt.core.search.base import SearchAlgorithm
from nnlo_opt.core.search.grid import GridSearch
from nnlo_opt.core.space.space import Space
from nnlo_opt.engine.search.custom import custom_search, is_custom

#: placeholder for freeze-thaw or bayesian, whichever suits the trials (`app.run.options.choice`)
AUTO = "auto"


def make_search(name: str | SearchAlgorithm, space: Space, seed: int, options: Mapping[str, Any]) -> SearchAlgorithm:
    """Return the search algorithm called `name`.

    Args:
        name: one of `search_names()`, or a custom algorithm (`engine.search.custom`): FILE.py:CLASS or an object.
        space: search space of all points.
        seed: at least 0.
        options: `n_initial_points` of "bayesian" and "bayesian-skopt" (10 by default); `surrogate` and `acquisition` of
            "bayesian-skopt"; `population` of "genetic"; `grid_points` of "grid".

    Raises:
        ConfigurationError: the algorithm needs a package that is not installed.
    """
    return custom_search(name, space, seed) if is_custom(name) else _make_known(str(name), space, seed, options)


def _make_known(name: str, space: Space, seed: int, options: Mapping[str, Any]) -> SearchAlgorithm:
    algorithm = _ALGORITHMS[name]
    if algorithm.package:
        require_package(f'The search algorithm "{name}"', algorithm.package, "optuna", "choose another algorithm")
    with without_collection():  # SciPy alone creates a hundred thousand objects
        module = importlib.import_module(_ALGORITHMS[name].module)
    return getattr(module, algorithm.maker)(space, seed, **options)


def search_names() -> tuple[str, ...]:
    """Return the names that `make_search` accepts."""
    return tuple(_ALGORITHMS)


def is_grid(name: str | SearchAlgorithm) -> bool:
    """Return True if this search algorithm tries the points of a grid in order."""
    return name == "grid" or isinstance(name, GridSearch) or (isinstance(name, type) and issubclass(name, GridSearch))


def can_expect_best(name: str | SearchAlgorithm) -> bool:
    """Return True if this search algorithm can tell the best expected trial."""
    return not is_custom(name) and _ALGORITHMS[str(name)].can_expect


def options_of(name: str | SearchAlgorithm) -> tuple[str, ...]:
    """Return the specific options of this algorithm; none for a custom one."""
    return () if is_custom(name) or name == AUTO else _ALGORITHMS[str(name)].options


@dataclass(frozen=True, slots=True)
class _Algorithm:
    """A search algorithm, imported on use: scikit-optimize alone takes 3 s of CPU and 170 MB."""

    module: str
    #: class or function in `module` that returns the algorithm
    maker: str
    options: tuple[str, ...] = ()
    #: optional package that the algorithm needs
    package: str = ""
    #: True if it has a method `best_expected`
    can_expect: bool = False


_ALGORITHMS = {
    "bayesian": _Algorithm("nnlo_opt.core.search.bayesian", "BayesianSearch", ("n_initial_points",), can_expect=True),
    "freeze-thaw": _Algorithm(
        "nnlo_opt.core.search.bayesian", "BayesianSearch", ("n_initial_points",), can_expect=True
    ),
    "bayesian-skopt": _Algorithm(
        "nnlo_opt.engine.search.skopt_search", "SkoptSearch", ("n_initial_points", "surrogate", "acquisition")
    ),
    "genetic": _Algorithm("nnlo_opt.core.search.genetic", "GeneticSearch", ("population",)),
    "random": _Algorithm("nnlo_opt.core.search.random", "RandomSearch"),
    "sobol": _Algorithm("nnlo_opt.core.search.sobol", "SobolSearch"),
    "tpe": _Algorithm("nnlo_opt.engine.search.optuna_search", "make_tpe", package="optuna"),
    "gp": _Algorithm("nnlo_opt.engine.search.optuna_search", "make_gp", package="optuna"),
    "cmaes": _Algorithm("nnlo_opt.engine.search.cmaes_search", "CmaEsSearch", package="cmaes"),
    "grid": _Algorithm("nnlo_opt.core.search.grid", "GridSearch", ("grid_points",)),
}
