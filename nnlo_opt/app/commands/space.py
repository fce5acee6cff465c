"""`nnlo-opt space`: prints a search space; its module is executed in this process."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from nnlo_opt.app.commands.arguments import Parser
from nnlo_opt.app.reporting.space_table import points_table, size_text, space_table
from nnlo_opt.app.reporting.terminal import line_width
from nnlo_opt.app.run.options.kinds import whole
from nnlo_opt.app.run.options.table import BY_NAME, SEED, Option
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.training.options import searchable
from nnlo_opt.engine.loading.spaces import load_space

#: options of `nnlo-opt space`
OPTIONS = (
    Option("samples", "N", whole(0), "number of random points to print", 0, example="5"),
    replace(SEED, help="random seed of the points"),
    replace(BY_NAME["fix"], group=""),
)


def main(parser: Parser, argv: Sequence[str]) -> None:
    """Print the parameters of a search space, and random points of it."""
    parser.add_argument("module", metavar="MODULE", help="Python file or dotted module, as --search-space takes it")
    arguments = parser.values(argv)
    space = load_space(arguments.module, arguments.fix)
    width = line_width()
    print(space_table(space, f"Search space of {arguments.module}", width))
    print(f"\n{size_text(space)}")
    for name in space.train_names:
        try:
            searchable(name)
        except ConfigurationError as error:
            print(f"\nWarning: the drivers refuse this search space. {error}")
    if arguments.samples:
        rng = np.random.default_rng(arguments.seed)
        points = [space.sample(rng) for _ in range(arguments.samples)]
        print(f"\n{points_table(space, points, 'Some points, drawn by the priors', width)}")
