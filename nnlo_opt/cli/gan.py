"""Options of the built-in GAN, with what its searches, or trainings by `MPIGDriver`, take for granted."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from nnlo_opt.run.option_kinds import FLAG, PATH, SHARE, finite, whole
from nnlo_opt.run.option_table import Option

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
#: options of `MPIGDriver` beside the options of TrainingDriver; their names are arguments of the built-in model
GAN_OPTIONS = tuple(replace(option, group=_GROUP, python=False, common=True) for option in (
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
        help="train each model once a batch, not twice; the discriminator gets both kinds of showers together"),
    Option("reverse", "", FLAG, shown="$GANREVERSED",
        help="train the generator before the discriminator in each batch"),
    Option("keep_generator_every", "BATCHES", whole(0, "batches"), shown="$GANCHECKPOINT, else never", example="100",
        help="batches between two copies of the generator; each worker writes mpi_generator_<host>_<pid>.weights.h5"),
    Option("keep_generator_in", "FOLDER", PATH, shown="$GANCHECKPOINTLOC, else the working folder", example="kept",
        help="folder of the copies"),
))
# fmt: on


def for_gan(given: Mapping[str, Any], remarks: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the options of a training of the GAN without its own ones, and all sentences for the user."""
    rest = {name: value for name, value in given.items() if name not in {option.name for option in GAN_OPTIONS}}
    remarks = [*remarks]
    if given.get("model", GAN) != GAN:
        remarks.append(f"`{given['model']}` is not read: {GAN_DRIVER} trains the built-in model `{GAN}`.")
    if rest.pop("loss", None):
        remarks.append("`--loss` is not read: the GAN has three losses of its own.")
    if not given.keys() & {"optimizer", "worker_optimizer"}:
        rest["worker_optimizer"] = _OPTIMIZER
    return rest | {"model": GAN}, remarks


def for_search(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a search of the GAN as NNLO made it, with its figure of merit, unless others are given."""
    if (given.get("model") or given.get("example")) != GAN:
        return given
    made = {"mode": "easgd"}
    if not given.keys() & {"optimizer", "worker_optimizer"}:
        made["worker_optimizer"] = _OPTIMIZER
    if not given.keys() & {"objective", "figure_of_merit"}:
        made["figure_of_merit"] = "figure_of_merit"
    return made | dict(given)
