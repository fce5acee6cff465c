"""The parsers of the two drivers: every option with its unit, its default and its rule."""

import argparse
import ast
import difflib
import re
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from nnlo_opt.cli.comparing import add_budget, add_comparison
from nnlo_opt.cli.pruning import add_pruning
from nnlo_opt.cli.values import number as _number
from nnlo_opt.config import TrainingOptions
from nnlo_opt.data.weights import parse_class_weights
from nnlo_opt.errors import ConfigurationError
from nnlo_opt.search.start_points import parse_start_point

LOG_LEVELS = ("trace", "debug", "info", "warn", "error")
#: the folder of all runs
RUNS = "checkpoints"


class HelpRequested(Exception):
    """`--help`: the text is to be printed by rank 0."""


class _Parser(argparse.ArgumentParser):
    """Raises instead of printing: with many ranks one of them has to say it, and all have to leave."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # -1e-3 is a value too, and no option; argparse itself knows -0.001 only.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def error(self, message: str) -> NoReturn:
        text = message.removeprefix("argument ")
        if message.startswith("argument ") and ": " in text:
            option, rule = text.split(": ", 1)
            raise ConfigurationError(f"`{option.split('/')[0]}` {rule}")
        if message.startswith("unrecognized arguments: "):
            raise ConfigurationError(self._unknown(message.removeprefix("unrecognized arguments: ")))
        raise ConfigurationError(f"{message[:1].upper()}{message[1:]}; `{self.prog} --help` lists the options.")

    def _unknown(self, arguments: str) -> str:
        first = next(iter(arguments.split()), "an empty one")
        close = difflib.get_close_matches(first, self._option_string_actions, n=1)
        hint = f"did you mean `{close[0]}`?" if close else f"see `{self.prog} --help`."
        return f"Every argument must be an option of {self.prog} or its value. Received: {first}; {hint}"


class _Help(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, **kwargs: Any) -> None:
        super().__init__(option_strings, dest, nargs=0, default=argparse.SUPPRESS, help="show this text and leave")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        raise HelpRequested(parser.format_help())


# ---------------------------------------------------------------- values


def _start_point(text: str) -> dict[str, Any]:
    try:
        return parse_start_point(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be written as name=value,name=value. Received: {text}.") from None


def _dictionary(text: str) -> dict[str, Any]:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        value = None
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise argparse.ArgumentTypeError(f"must be a dictionary such as \"{{'momentum': 0.9}}\". Received: {text}.")
    return value


# ---------------------------------------------------------------- the parsers


def optimization_parser() -> argparse.ArgumentParser:
    """All options of OptimizationDriver."""
    parser = _parser(
        "OptimizationDriver",
        "Search hyperparameters: rank 0 coordinates, every other rank trains in a block of --block-size ranks.",
    )
    group = parser.add_argument_group("search")
    whole = _number(int, "a whole number, at least 1", 1)
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
    _add_search_options(group, whole)
    group.add_argument(
        "--block-size",
        metavar="RANKS",
        type=_number(int, "a whole number of ranks, at least 1", 1),
        default=2,
        help="ranks that train one trial, a master and its workers; 1: a single-process trainer (default: %(default)s)",
    )
    group.add_argument(
        "--n-fold",
        metavar="FOLDS",
        type=whole,
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
    add_pruning(parser)
    group.add_argument("--example", metavar="NAME", help="builtin model (mnist, cifar10) where no --model is given")
    group.add_argument(
        "--restore",
        action=_refused("`--restore` belongs to TrainingDriver; a search goes on with `--opt-restore`."),
        nargs="?",
        default=argparse.SUPPRESS,
        help=argparse.SUPPRESS,
    )
    add_comparison(parser)
    add_budget(parser)
    return parser


def _add_search_options(group: argparse._ArgumentGroup, whole: Callable[[str], Any]) -> None:
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
        type=whole,
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
    parser = _Parser(
        prog=program,
        usage=f"mpirun -np RANKS {program} --model MODEL [options]",
        description=description,
        add_help=False,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=34, width=110),
        epilog="Options may be written with - or _ and shortened while they stay unambiguous.",
    )
    parser.add_argument("-h", "--help", action=_Help)
    _add_model_and_data(parser)
    _add_reading(parser)
    _add_training(parser)
    _add_run(parser)
    _add_machine(parser)
    return parser


def _add_model_and_data(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model and data")
    group.add_argument(
        "--model",
        metavar="MODEL",
        help="file.py with get_model(**parameters) or objective(parameters, comm, report); "
        "a builtin name (mnist, cifar10); or an architecture arch.json of Keras 3",
    )
    group.add_argument("--train-data", metavar="LIST", help="text file with one HDF5 file of training samples a line")
    group.add_argument("--val-data", metavar="LIST", help="text file with one HDF5 file of validation samples a line")
    group.add_argument(
        "--features-name",
        metavar="NAME",
        help="data set of the features; a group, or names with commas between, for several inputs (default: features)",
    )
    group.add_argument("--labels-name", metavar="NAME", help="the same of the labels (default: labels)")
    group.add_argument(
        "--loss", metavar="NAME", help="Keras name (default: the module's get_loss, else inferred and announced)"
    )
    group.add_argument(
        "--backend",
        metavar="NAME",
        help="what the model is made with: keras, or torch for a torch.nn.Module (default: as the model module tells)",
    )
    group.add_argument(
        "--keras-backend",
        metavar="NAME",
        help="what Keras computes with: tensorflow, jax or torch (default: KERAS_BACKEND, else tensorflow)",
    )


def _add_reading(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reading and weighting samples")
    group.add_argument(
        "--class-weights",
        metavar="DICT",
        type=parse_class_weights,
        help='what a sample of a class counts in training, such as "{0: 1.0, 1: 5.0}", others 1; or balanced: every '
        "class as much as each other (default: every sample 1)",
    )
    group.add_argument(
        "--sample-weights-name",
        metavar="NAME",
        help="data set with what each sample counts in training (default: every sample 1)",
    )
    group.add_argument(
        "--memory-limit",
        metavar="MIB",
        type=_number(int, "a whole number of MiB, at least 0", 0),
        help="of samples that a rank holds in memory; more are read from the files in every pass, in the same order "
        "(default: a quarter of the node's free memory, divided among its ranks)",
    )
    group.add_argument(
        "--preload-data",
        metavar="N",
        type=_number(int, "a whole number, at least 0", 0),
        default=1,
        help="windows of 64 MiB read ahead by a thread, where samples are not held in memory (default: %(default)s)",
    )
    group.add_argument(
        "--verify-data",
        action="store_true",
        help="compare all data files with the SHA-256 in LIST.sha256 beside each list, which GetData writes, before "
        "anything trains",
    )
    group.add_argument(
        "--cache-data",
        metavar="DIR",
        help="folder, of the node, for copies of the files that its ranks read samples of; removed at the end "
        "(default: $DATA_CACHE, else files are read where they are)",
    )
    group.add_argument(
        "--copy-command",
        metavar="COMMAND",
        help="command without a shell that copies one file, such as 'scp {} {}' "
        "(default: $DATA_COPY_COMMAND, else they are copied by this process)",
    )


def _add_training(parser: argparse.ArgumentParser) -> None:
    defaults = TrainingOptions()
    group = parser.add_argument_group("training (may be searched too, as train.batch, train.learning_rate, …)")
    group.add_argument(
        "--batch",
        metavar="SAMPLES",
        type=_number(int, "a whole number of samples, at least 1", 1),
        default=defaults.batch,
        help="samples a worker takes for one gradient (default: %(default)s)",
    )
    group.add_argument(
        "--epochs",
        metavar="EPOCHS",
        type=_number(int, "a whole number of epochs, at least 1", 1),
        default=defaults.epochs,
        help="passes over the training data, counted over all workers (default: %(default)s)",
    )
    group.add_argument(
        "--mode",
        metavar="RULE",
        default=defaults.mode,
        help="update rule: downpour, easgd, gem, or allreduce, in which every rank trains (default: %(default)s)",
    )
    group.add_argument(
        "--synchronous",
        action="store_true",
        help="average the gradients of all workers (default: each at its own pace)",
    )
    group.add_argument(
        "--sync-every",
        metavar="BATCHES",
        type=_number(int, "a whole number of batches, at least 1", 1),
        default=defaults.sync_every,
        help="batches between two exchanges of a worker with its master (default: %(default)s)",
    )
    group.add_argument(
        "--optimizer",
        metavar="NAME",
        default=defaults.optimizer,
        help="at the master: sgd, adam, rmsprop or adadelta, with Keras's defaults (default: %(default)s)",
    )
    group.add_argument(
        "--learning-rate",
        metavar="RATE",
        type=_number(float, "a finite number above 0"),
        help="of the optimizer (default: the optimizer's own)",
    )
    group.add_argument(
        "--optimizer-params", metavar="DICT", type=_dictionary, default={}, help="such as \"{'momentum': 0.9}\""
    )
    group.add_argument(
        "--warmup-epochs",
        metavar="EPOCHS",
        type=_number(float, "a finite number of epochs, at least 0", 0),
        default=defaults.warmup_epochs,
        help="epochs over which the learning rate rises linearly from 0 to its value; fractions allowed "
        "(default: %(default)g)",
    )
    group.add_argument(
        "--lr-schedule",
        metavar="RULE",
        default=defaults.lr_schedule,
        help="constant, linear, cosine (both to 0 at the last epoch), exponential:RATE (times RATE each epoch) or "
        "step:EVERY:FACTOR (times FACTOR every EVERY epochs) (default: %(default)s)",
    )
    group.add_argument(
        "--early-stopping",
        metavar="RULE",
        help="metric,<,patience: stop after so many epochs without improvement and take the best weights; "
        "~< compares means of as many epochs; a metric of one output or model is name:metric, such as energy:val_loss",
    )
    group.add_argument(
        "--target-metric",
        metavar="RULE",
        help="metric,>,value: stop when the metric is past the value; a metric of one output or model is name:metric",
    )
    _add_update_rules(group, defaults)
    group.add_argument("--no-shuffle", action="store_true", help="keep the order of samples in every epoch")


def _add_update_rules(group: argparse._ArgumentGroup, defaults: TrainingOptions) -> None:
    number = _number(float, "a finite number")
    group.add_argument(
        "--n-processes",
        metavar="RANKS",
        type=_number(int, "a whole number of ranks, at least 1", 1),
        default=1,
        help="ranks of a worker, which average their gradients before they push; not searchable (default: %(default)s)",
    )
    group.add_argument(
        "--n-masters",
        metavar="MASTERS",
        type=_number(int, "a whole number of masters, at least 1", 1),
        default=1,
        help="masters of a block: above 1 its first rank is a top master and the others are sub-masters, each of which "
        "leads a group of workers and is one worker to the top master; not searchable (default: %(default)s)",
    )
    group.add_argument(
        "--overlap",
        action=argparse.BooleanOptionalAction,
        default=defaults.overlap,
        help="a worker computes its next batch while the master answers, so that its gradients are a batch older "
        "(default: unless workers wait for each other)",
    )
    group.add_argument(
        "--staleness",
        metavar="POLICY",
        default=defaults.staleness,
        help="downpour: what counts an update that is n versions old: none (all), scale (1/(1+n)), or drop:N, nothing "
        "beyond N (default: %(default)s)",
    )
    group.add_argument(
        "--worker-optimizer",
        metavar="NAME",
        help="of a worker's own steps between exchanges (default: easgd: --optimizer; else sgd)",
    )
    group.add_argument(
        "--worker-optimizer-params", metavar="DICT", type=_dictionary, default={}, help="as --optimizer-params"
    )
    group.add_argument(
        "--elastic-force",
        metavar="BETA",
        type=number,
        default=defaults.elastic_force,
        help="easgd: each of n workers is tied by BETA / n (default: %(default)s)",
    )
    group.add_argument(
        "--elastic-lr", metavar="RATE", type=number, help="easgd: of the workers' own steps (default: --learning-rate)"
    )
    group.add_argument(
        "--elastic-momentum",
        metavar="DELTA",
        type=number,
        default=defaults.elastic_momentum,
        help="easgd: Nesterov momentum of the workers' own steps, EAMSGD (default: %(default)s)",
    )
    group.add_argument(
        "--gem-lr",
        metavar="RATE",
        type=number,
        default=defaults.gem_lr,
        help="gem: of the worker; an update is scaled by up to 5 (default: %(default)s)",
    )
    group.add_argument(
        "--gem-momentum", metavar="MU", type=number, default=defaults.gem_momentum, help="gem (default: %(default)s)"
    )
    group.add_argument(
        "--gem-kappa",
        metavar="KAPPA",
        type=number,
        default=defaults.gem_kappa,
        help="gem: how much faster than one alone all workers may move the weights (default: %(default)s)",
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
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
        type=_number(int, "a whole number of epochs, at least 1", 1),
        default=1,
        help="epochs between two checkpoints of a training (default: %(default)s)",
    )
    group.add_argument(
        "--grace",
        metavar="SECONDS",
        type=_number(float, "a finite number of seconds, at least 1", 1),
        default=60.0,
        help="after SIGUSR1, to end with a checkpoint of what runs and code 75, to be resumed (default: %(default)g)",
    )
    group.add_argument("--overwrite", action="store_true", help="replace a run of the same name")
    group.add_argument(
        "--seed",
        metavar="N",
        type=_number(int, "a whole number, at least 0", 0),
        default=0,
        help="of the search, the folds, the initial weights and the shuffling (default: %(default)s)",
    )
    group.add_argument(
        "--log-level",
        metavar="LEVEL",
        choices=LOG_LEVELS,
        default="info",
        help=f"{', '.join(LOG_LEVELS)} (default: info)",
    )
    group.add_argument("--log-file", metavar="FILE", help="write what rank 0 prints to this file too")
    group.add_argument("--verbose", action="store_true", help="the same as --log-level debug")


def _add_machine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("devices, and what is observed")
    group.add_argument(
        "--max-gpus",
        metavar="N",
        type=_number(int, "a whole number of GPUs, at least 0", 0),
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


def _refused(sentence: str) -> type[argparse.Action]:
    class Refuse(argparse.Action):
        def __call__(self, *_: Any, **__: Any) -> None:
            raise ConfigurationError(sentence)

    return Refuse
