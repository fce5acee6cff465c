"""`nnlo-opt space`: a search space as people read it. The module is executed in this process."""

import argparse
import sys

import numpy as np

from nnlo_opt.cli.search_options import fixed_values
from nnlo_opt.errors import EXIT_OK, ConfigurationError
from nnlo_opt.reporting.space_table import points_table, size_text, space_table
from nnlo_opt.space.loading import load_space


def add_options(parser: argparse.ArgumentParser) -> None:
    """All options of the command."""
    parser.add_argument("module", metavar="MODULE", help="Python file or dotted module, as --search-space takes it")
    parser.add_argument("--samples", type=int, default=0, metavar="N", help="points to draw and print (default: 0)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the points (default: 0)")
    parser.add_argument(
        "--fix", action="append", default=[], metavar="NAME=VALUE", help="as of OptimizationDriver; repeatable"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the space; returns the exit code. ConfigurationError for what is wrong with it."""
    for option, value in (("--samples", arguments.samples), ("--seed", arguments.seed)):
        if value < 0:
            raise ConfigurationError(f"`{option}` must be a whole number, at least 0. Received: {value}.")
    space = load_space(arguments.module, fixed_values(arguments.fix))
    print(space_table(space, f"Search space of {arguments.module}"))
    print(f"\n{size_text(space)}")
    if arguments.samples:
        rng = np.random.default_rng(arguments.seed)
        points = [space.sample(rng) for _ in range(arguments.samples)]
        print(f"\n{points_table(space, points, 'Some points, drawn by the priors')}")
    sys.stdout.flush()
    return EXIT_OK
