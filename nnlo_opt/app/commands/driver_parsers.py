"""Parsers of the drivers, which also accept former names of options."""

import argparse
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from nnlo_opt.app.commands.arguments import Parser
from nnlo_opt.app.run.options.kinds import FLAG, PATH, SHARE, finite, whole
from nnlo_opt.app.run.options.table import OPTIMIZATION_OPTIONS, TRAINING_OPTIONS, Option

#: options that TrainingDriver and MPIDriver also accept as positional arguments, all three in this order
POSITIONAL = ("model", "train_data", "val_data")
#: model of a search without `--model` and `--example`
DEFAULT_EXAMPLE = "mnist"
#: name of the program of mpi_learn
_MPI_DRIVER = "MPIDriver"
#: name of the program of NNLO for its GAN
GAN_DRIVER = "MPIGDriver"
#: built-in model
GAN = "gan"
#: the optimizer of NNLO's GAN
_OPTIMIZER = "rmsprop"
_GROUP = "generative adversarial network"
# A table, laid out by hand.
# fmt: off
_WEIGHT = finite(0)
#: options that `MPIGDriver` has in addition to TrainingDriver; their names are arguments of the built-in model
GAN_OPTIONS = tuple(replace(option, group=_GROUP, python=False, common=True) for option in (
    Option("latent_size", "N", whole(), shown="200", example="100",
        help="length of the noise vector from which a shower is generated"),
    Option("discr_drop_out", "SHARE", SHARE, shown="0.2", example="0.1",
        help="dropout rate of the discriminator"),
    Option("gen_weight", "WEIGHT", _WEIGHT, shown="2", example="5",
        help="weight of the classification loss (simulated or generated)"),
    Option("aux_weight", "WEIGHT", _WEIGHT, shown="0.1", example="1",
        help="weight of the energy loss"),
    Option("ecal_weight", "WEIGHT", _WEIGHT, shown="0.1", example="1",
        help="weight of the loss of the total energy in all cells"),
    Option("one_pass", "", FLAG, shown="$GANONEPASS",
        help="train each model once per batch instead of twice; the discriminator gets both kinds of showers "
             "together"),
    Option("reverse", "", FLAG, shown="$GANREVERSED",
        help="train the generator before the discriminator in each batch"),
    Option("keep_generator_every", "BATCHES", whole(0, "batches"), shown="$GANCHECKPOINT, else never", example="100",
        help="batches between two saves of the generator; each worker writes mpi_generator_<host>_<pid>.weights.h5"),
    Option("keep_generator_in", "FOLDER", PATH, shown="$GANCHECKPOINTLOC, else the working folder", example="kept",
        help="folder of these saves"),
))
# fmt: on
_TRAINING = (
    "Train one model on all ranks: rank 0 is the master, the others are its workers; one rank trains by itself.",
    TRAINING_OPTIONS,
)
#: driver -> description and options
DRIVERS: Mapping[str, tuple[str, tuple[Option, ...]]] = {
    "OptimizationDriver": (
        "Search hyperparameters: rank 0 coordinates, every other rank trains in a block of --block-size ranks.",
        OPTIMIZATION_OPTIONS,
    ),
    "TrainingDriver": _TRAINING,
    _MPI_DRIVER: _TRAINING,
    GAN_DRIVER: (
        "Train the GAN of calorimeter showers, like TrainingDriver trains a model.",
        # Its model is built in, so `--model`, which NNLO's command lines contain, is not a common option.
        (
            *(replace(option, common=option.common and option.name != "model") for option in TRAINING_OPTIONS),
            *GAN_OPTIONS,
        ),
    ),
}
#: options without effect here -> reason
_IDLE: Mapping[str, str] = {
    "tf": "`--tf` changes nothing here: `--keras-backend` chooses what Keras computes with, TensorFlow if it is left "
    "out.",
    "profile": "`--profile` changes nothing here: it was for Theano. `--timeline` and `--monitor` measure.",
}
#: options that mpi_learn accepted but never used
_NEVER_USED = ("elastic_lr", "elastic_momentum")


@cache
def driver_parser(program: str) -> Parser:
    """Return the parser of a driver, with a short and a full help; a start needs it twice."""
    description, options = DRIVERS[program]
    needed = "" if program == GAN_DRIVER else "--model MODEL "
    parser = Parser(
        options,
        prog=program,
        usage=f"mpirun -np RANKS {program} {needed}[options]",
        description=description,
        add_help=False,
        epilog="Options may be written with - or _ and shortened while they stay unambiguous. TIME is in seconds, or "
        "as 90m, 2h or 1:30:00.",
    )
    parser.add_answer("-h", "--help", help="show the common options and exit", answer=parser.common_help)
    # Former names, hidden in the help.
    hidden: dict[str, Any] = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    parser.add_argument("--masters", dest="n_masters", **hidden)
    parser.add_argument("--easgd", dest="mode", action="store_const", const="easgd", **hidden)
    for name in _IDLE:
        parser.add_argument(f"--{name}", action="store_true", **hidden)
    parser.add_answer("--help-all", help="show all options, with examples, and exit", answer=parser.format_help)
    return parser


def given_of(program: str, argv: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the options in a driver's command line under their current names.

    Returns:
        Name -> text, and remarks for the user.

    Raises:
        ConfigurationError: the command line is invalid.
        HelpRequested: it asks for help.
    """
    is_search = program == "OptimizationDriver"
    given = driver_parser(program).given(normalise(argv), () if is_search else POSITIONAL)
    remarks = [sentence for name, sentence in _IDLE.items() if given.pop(name, False)]
    for name in _NEVER_USED if program == _MPI_DRIVER else ():
        if name in given:
            flag = f"--{name.replace('_', '-')}"
            text = given.pop(name)
            remarks.append(f"`{flag} {text}` is ignored, because mpi_learn never used it; TrainingDriver does.")
    if program == GAN_DRIVER:
        return _for_gan(given, remarks)
    if not is_search:
        return given, remarks
    if not given.keys() & {"model", "example", "command"}:
        given["example"] = DEFAULT_EXAMPLE
        remarks.append(f"Without `--model` the built-in model {DEFAULT_EXAMPLE} is searched, as NNLO did.")
    return dict(_for_search(given)), remarks


def _for_gan(given: Mapping[str, Any], remarks: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the options of a GAN training without the GAN's own ones, and all remarks for the user."""
    rest = {name: value for name, value in given.items() if name not in {option.name for option in GAN_OPTIONS}}
    remarks = [*remarks]
    if given.get("model", GAN) != GAN:
        remarks.append(f"`{given['model']}` is ignored: {GAN_DRIVER} trains the built-in model `{GAN}`.")
    if rest.pop("loss", None):
        remarks.append("`--loss` is ignored: the GAN has its own three losses.")
    if not given.keys() & {"optimizer", "worker_optimizer"}:
        rest["worker_optimizer"] = _OPTIMIZER
    return rest | {"model": GAN}, remarks


def _for_search(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a GAN search with NNLO's defaults and figure of merit, unless others are given."""
    if (given.get("model") or given.get("example")) != GAN:
        return given
    made = {"mode": "easgd"}
    if not given.keys() & {"optimizer", "worker_optimizer"}:
        made["worker_optimizer"] = _OPTIMIZER
    if not given.keys() & {"objective", "figure_of_merit"}:
        made["figure_of_merit"] = "figure_of_merit"
    return made | dict(given)


def normalise(argv: Sequence[str]) -> list[str]:
    """Return `--train_data=x` as `--train-data=x`: NNLO wrote some options with underscores."""
    return [re.sub("^--[^=]*", lambda name: name[0].replace("_", "-"), argument) for argument in argv]
