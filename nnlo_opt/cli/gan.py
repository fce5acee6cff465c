"""`MPIGDriver`: trains the GAN of calorimeter showers, with the options of TrainingDriver.

mpirun -np 3 MPIGDriver gan.json train_showers.list test_showers.list --epochs 5 --mode easgd --checkpoint gan
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nnlo_opt.cli.arguments import POSITIONAL, as_today, driver_parser, normalise, with_remarks
from nnlo_opt.run.option_kinds import FLAG, PATH, SHARE, finite, whole
from nnlo_opt.run.option_table import TRAINING_OPTIONS, Option, read
from nnlo_opt.run.options import Options, training_options

PROGRAM = "MPIGDriver"
#: built-in model
MODEL = "gan"
#: the optimizer of NNLO's GAN
_OPTIMIZER = "rmsprop"
_GROUP = "generative adversarial network"
# A table, laid out by hand.
# fmt: off
_WEIGHT = finite(0)
#: options of `MPIGDriver` beside those of TrainingDriver; a name is an argument of `get_model` of the built-in model
OPTIONS = tuple(replace(option, group=_GROUP, python=False) for option in (
    Option("latent_size", "N", whole(), shown="200", example="100",
        help="length of the noise that a shower is made of"),
    Option("discr_drop_out", "SHARE", SHARE, shown="0.2", example="0.1",
        help="share of units that the discriminator drops"),
    Option("gen_weight", "WEIGHT", _WEIGHT, shown="2", example="5",
        help="weight of the loss of the classification, simulated or generated"),
    Option("aux_weight", "WEIGHT", _WEIGHT, shown="0.1", example="1",
        help="weight of the loss of the energy"),
    Option("ecal_weight", "WEIGHT", _WEIGHT, shown="0.1", example="1",
        help="weight of the loss of the sum of the cells"),
    Option("one_pass", "", FLAG, shown="$GANONEPASS",
        help="train each model once a batch, on simulated and generated showers together; else twice"),
    Option("reverse", "", FLAG, shown="$GANREVERSED",
        help="train the generator before the discriminator in each batch"),
    Option("keep_generator_every", "BATCHES", whole(0, "batches"), shown="$GANCHECKPOINT, else never", example="100",
        help="batches after which each worker writes its generator to a file mpi_generator_<host>_<pid>.weights.h5"),
    Option("keep_generator_in", "FOLDER", PATH, shown="$GANCHECKPOINTLOC, else the working folder", example="kept",
        help="folder of these files"),
))
# fmt: on


def parse_gan(argv: Sequence[str]) -> Options:
    """Return the options of `MPIGDriver`; ConfigurationError or HelpRequested."""
    what = "Train the GAN of calorimeter showers, as TrainingDriver trains a model."
    parser = driver_parser(PROGRAM, what, (*TRAINING_OPTIONS, *OPTIONS))
    given, remarks = as_today(parser.given(normalise(argv), POSITIONAL), PROGRAM)
    return with_remarks(gan_options(given, argv), remarks)


def gan_options(given: Mapping[str, Any], command_line: Sequence[str]) -> Options:
    """Return the options of `MPIGDriver`; `given` and errors as of `run.options.training_options`."""
    own = {name: value for name, value in vars(read(given, OPTIONS)).items() if value is not None}
    idle = {option.name for option in OPTIONS}
    rest = {name: value for name, value in given.items() if name not in idle}
    remarks = []
    if given.get("model", MODEL) != MODEL:
        remarks.append(f"`{given['model']}` is not read: {PROGRAM} trains the built-in model `{MODEL}`.")
    if rest.pop("loss", None):
        remarks.append("`--loss` is not read: the GAN has three losses of its own.")
    if not given.keys() & {"optimizer", "worker_optimizer"}:
        rest["worker_optimizer"] = _OPTIMIZER
    options = training_options(rest | {"model": MODEL}, command_line)
    return replace(options, point=own, remarks=(*options.remarks, *remarks))


def for_search(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a search of the GAN as NNLO made it, with its figure of merit, unless others are given."""
    if (given.get("model") or given.get("example")) != MODEL:
        return given
    made = {"mode": "easgd"}
    if not given.keys() & {"optimizer", "worker_optimizer"}:
        made["worker_optimizer"] = _OPTIMIZER
    if not given.keys() & {"objective", "figure_of_merit"}:
        made["figure_of_merit"] = "figure_of_merit"
    return made | dict(given)
