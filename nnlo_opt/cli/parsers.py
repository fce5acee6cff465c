"""The parsers of the two drivers, put together from the options of their parts."""

import argparse

from nnlo_opt.cli.comparing import add_budget, add_comparison
from nnlo_opt.cli.data_options import add_model_and_data, add_reading
from nnlo_opt.cli.parsing import Help, Parser, refused
from nnlo_opt.cli.pruning import add_pruning
from nnlo_opt.cli.run_options import add_machine, add_run
from nnlo_opt.cli.search_options import add_search
from nnlo_opt.cli.training_options import add_training


def optimization_parser() -> argparse.ArgumentParser:
    """All options of OptimizationDriver."""
    parser = _parser(
        "OptimizationDriver",
        "Search hyperparameters: rank 0 coordinates, every other rank trains in a block of --block-size ranks.",
    )
    add_search(parser)
    add_pruning(parser)
    parser.add_argument(
        "--restore",
        action=refused("`--restore` belongs to TrainingDriver; a search goes on with `--opt-restore`."),
        nargs="?",
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )
    add_comparison(parser)
    add_budget(parser)
    return parser


def training_parser() -> argparse.ArgumentParser:
    """All options of TrainingDriver."""
    parser = _parser(
        "TrainingDriver",
        "Train one model on all ranks: rank 0 is the master, the others are its workers; one rank trains by itself.",
    )
    group = parser.add_argument_group("training driver")
    group.add_argument(
        "--restore",
        metavar="NAME",
        nargs="?",
        const="",
        help="go on from the last checkpoint of the run NAME (default name: that of --checkpoint or --trial-name)",
    )
    return parser


def _parser(program: str, description: str) -> argparse.ArgumentParser:
    parser = Parser(
        prog=program,
        usage=f"mpirun -np RANKS {program} --model MODEL [options]",
        description=description,
        add_help=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=110),
        epilog="Options may be written with - or _ and shortened while they stay unambiguous.",
    )
    parser.add_argument("-h", "--help", action=Help)
    add_model_and_data(parser)
    add_reading(parser)
    add_training(parser)
    add_run(parser)
    add_machine(parser)
    return parser
