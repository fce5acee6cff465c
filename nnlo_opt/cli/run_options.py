"""The run and the machine: name, checkpoints, seed, log and devices as options, and what they make."""

import argparse
from pathlib import Path
from typing import Any

from nnlo_opt.cli.values import finite, whole
from nnlo_opt.trials.run_directory import RunRequest

LOG_LEVELS = ("trace", "debug", "info", "warn", "error")
#: the folder of all runs
RUNS = "checkpoints"


def add_run(parser: argparse.ArgumentParser) -> None:
    """The options of `run_request_of`, and what belongs to a start."""
    group = parser.add_argument_group("run")
    group.add_argument(
        "--checkpoint",
        metavar="NAME",
        help=f"name of the run, whose directory is {RUNS}/NAME, or a path (default: --trial-name, else <model>-001, …)",
    )
    group.add_argument("--trial-name", metavar="NAME", help="name of the run in its files (default: train)")
    group.add_argument(
        "--checkpoint-interval",
        metavar="EPOCHS",
        type=whole(unit="epochs"),
        default=1,
        help="epochs between two checkpoints of a training (default: %(default)s)",
    )
    add_grace(group, "after SIGUSR1, to end with a checkpoint of what runs and code 75, to be resumed")
    group.add_argument(
        "--hang-timeout",
        metavar="SECONDS",
        type=finite(0, "seconds"),
        default=600.0,
        help="a rank that trains no batch and hears no message for so long (three times that while a model is built or "
        "compiled) is ended, with the stacks of its threads in its log, and so is one that is stopped; code of yours "
        "that computes an objective or a figure of merit may take as long as it likes, which --trial-timeout bounds; "
        "0: nobody watches (default: %(default)g)",
    )
    group.add_argument(
        "--max-attempts",
        metavar="N",
        type=whole(),
        default=3,
        help="a fold that loses ranks of its block (killed, out of memory, ended by --hang-timeout) so many times in a "
        "row, without getting an epoch further, fails its trial (default: %(default)s)",
    )
    group.add_argument("--overwrite", action="store_true", help="replace a run of the same name")
    add_seed(group, "of the search, the folds, the initial weights and the shuffling")
    group.add_argument(
        "--log-level",
        metavar="LEVEL",
        choices=LOG_LEVELS,
        default="info",
        help=f"{', '.join(LOG_LEVELS)} (default: info)",
    )
    group.add_argument("--log-file", metavar="FILE", help="write what rank 0 prints to this file too")
    group.add_argument("--verbose", action="store_true", help="the same as --log-level debug")


def add_grace(group: argparse._ActionsContainer, what: str) -> None:
    """`--grace`, the seconds that there are to do `what`."""
    group.add_argument(
        "--grace",
        metavar="SECONDS",
        type=finite(1, "seconds"),
        default=60.0,
        help=f"{what} (default: %(default)g)",
    )


def add_seed(group: argparse._ActionsContainer, what: str) -> None:
    """`--seed`, of `what`."""
    group.add_argument("--seed", metavar="N", type=whole(0), default=0, help=f"{what} (default: %(default)s)")


def add_machine(parser: argparse.ArgumentParser) -> None:
    """GPUs, and what is measured."""
    group = parser.add_argument_group("devices, and what is observed")
    group.add_argument(
        "--max-gpus",
        metavar="N",
        type=whole(0, "GPUs"),
        help="GPUs used on each node at most, in turn by the ranks that train; 0: CPU only "
        "(default: all that the batch system left visible)",
    )
    group.add_argument(
        "--master-gpu",
        action="store_true",
        help="a master has a GPU too, in turn with the workers; only useful where it computes "
        "(default: masters see none)",
    )
    group.add_argument(
        "--monitor",
        action="store_true",
        help="CPU (%% of a core), memory (MB) and NVIDIA GPU of every worker, per epoch, into the history "
        "(default: off)",
    )
    group.add_argument(
        "--timeline",
        action="store_true",
        help="write timeline.json, what every rank did when; open it in ui.perfetto.dev (default: off)",
    )
    group.add_argument(
        "--thread-validation",
        action="store_true",
        help="accepted for the reference's sake: validation is shared by the workers and never keeps a master busy",
    )


def run_request_of(arguments: argparse.Namespace, *, restore: bool) -> RunRequest:
    """Which run is meant; `restore`: it is gone on with."""
    name = arguments.checkpoint or arguments.trial_name
    root = Path(RUNS)
    if arguments.checkpoint and Path(arguments.checkpoint).name != arguments.checkpoint:
        path = Path(arguments.checkpoint)
        root, name = path.parent, path.name
    common: dict[str, Any] = {"root": root, "name": name, "restore": restore, "overwrite": arguments.overwrite}
    if hasattr(arguments, "opt_restore"):
        return RunRequest(**common)
    # A training may be given more epochs, and another target.
    ends = frozenset({"checkpoint_interval", "epochs", "target_metric"})
    return RunRequest(restore_option="--restore", may_change=ends, **common)
