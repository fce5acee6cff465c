"""How points of a search are found: options, and what they make."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnlo_opt.cli.values import whole
from nnlo_opt.errors import ConfigurationError
from nnlo_opt.run.options import SearchOptions
from nnlo_opt.search.start_points import parse_start_point


def add_search(parser: argparse.ArgumentParser) -> None:
    """What is searched and how, on which blocks and folds."""
    group = parser.add_argument_group("search")
    group.add_argument(
        "--search-space",
        metavar="MODULE",
        help="Python file or dotted module with a list of Real, Integer and other parameters, which `nnlo-opt space` "
        "shows (default: get_model.parameter_range of the model module)",
    )
    group.add_argument(
        "--fix",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a value of a parameter of the search space, which then does not vary; repeatable",
    )
    group.add_argument(
        "--hyper-opt",
        metavar="NAME",
        default="bayesian",
        help="search algorithm: bayesian, bayesian-skopt, genetic, random, sobol; with the extra [optuna] tpe, gp and "
        "cmaes (default: %(default)s)",
    )
    _add_algorithm_options(group)
    group.add_argument(
        "--block-size",
        metavar="RANKS",
        type=whole(unit="ranks"),
        default=2,
        help="ranks that train one trial, a master and its workers; 1: a single-process trainer (default: %(default)s)",
    )
    group.add_argument(
        "--n-fold",
        metavar="FOLDS",
        type=whole(),
        default=1,
        help="folds of the cross validation; 1: the given training and validation data (default: %(default)s)",
    )
    group.add_argument(
        "--fold-by",
        metavar="UNIT",
        default="samples",
        help="what folds are made of: samples (stratified by class), files, or the name of a data set whose equal "
        "values stay together (default: %(default)s)",
    )
    group.add_argument("--opt-restore", action="store_true", help="go on with the run where it stopped")
    group.add_argument("--example", metavar="NAME", help="builtin model (mnist, cifar10) where no --model is given")


def _add_algorithm_options(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--surrogate",
        metavar="NAME",
        help="model of bayesian-skopt: gp (Gaussian process), et (extra trees), rf (random forest) or gbrt (gradient "
        "boosting) (default: gp)",
    )
    group.add_argument(
        "--acquisition",
        metavar="NAME",
        help="what bayesian-skopt maximises: ei (expected improvement), lcb (lower confidence bound) or pi "
        "(probability of improvement) (default: ei)",
    )
    group.add_argument(
        "--ga-populations",
        metavar="TRIALS",
        type=whole(),
        help="population of genetic: a generation is so many completed trials (default: 10)",
    )
    group.add_argument(
        "--start-point",
        metavar="NAME=VALUE,...",
        type=_start_point,
        action="append",
        default=[],
        help="a point of the search space to be tried first; may be given several times",
    )
    group.add_argument(
        "--warm-start",
        metavar="RUN",
        nargs="+",
        action="extend",
        default=[],
        help="directories of earlier runs whose complete trials the search begins with; they are no trials of this run",
    )


def _start_point(text: str) -> dict[str, Any]:
    try:
        return parse_start_point(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be written as name=value,name=value. Received: {text}.") from None


def search_options_of(arguments: argparse.Namespace) -> SearchOptions:
    """How points are to be found; ConfigurationError."""
    return SearchOptions(
        algorithm=arguments.hyper_opt,
        surrogate=arguments.surrogate,
        acquisition=arguments.acquisition,
        population=arguments.ga_populations,
        start_points=tuple(arguments.start_point),
        warm_start=tuple(Path(path) for path in arguments.warm_start),
    )


def fixed_values(given: Sequence[str]) -> dict[str, str]:
    """What `--fix NAME=VALUE` was given with, by name; ConfigurationError for one without `=`, or given twice."""
    fixed: dict[str, str] = {}
    for text in given:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not name or not equals:
            raise ConfigurationError(
                f"`--fix` must be given as NAME=VALUE. Received: {text!r}. Write it as `--fix dropout=0.5`."
            )
        if name in fixed:
            raise ConfigurationError(
                f"`--fix` must give a parameter one value. Received: {fixed[name]!r} and {value!r} for {name!r}. "
                "Leave one of them out."
            )
        fixed[name] = value
    return fixed
