"""Table of all options.

The command line parsers, the reference page docs/reference/options.md and the arguments of `nnlo_opt.optimize` are
generated from this table; `app.run.options.making` creates the validated values of a command.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

from nnlo_opt.app.run.afterwards.mirrors import TOOLS
from nnlo_opt.app.run.options import kinds
from nnlo_opt.app.run.options.kinds import (
    CODE,
    FLAG,
    PATH,
    TEXT,
    TIME,
    Kind,
    WrongValueError,
    duration,
    finite,
    many,
    one_of,
    whole,
)
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.spelling import either
from nnlo_opt.core.coordinator.instructions import SearchPlan
from nnlo_opt.core.search.base import ACQUISITIONS, SURROGATES
from nnlo_opt.core.search.genetic import DEFAULT_POPULATION
from nnlo_opt.core.search.grid import DEFAULT_POINTS
from nnlo_opt.core.search.pruning import PRUNERS, PruningPlan
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials.objectives import DEFAULT, DEFAULT_FIGURE, EPOCHS, MEASURED
from nnlo_opt.core.trials.run_directory import RUNS
from nnlo_opt.core.update_rules.registry import RULES
from nnlo_opt.engine.loading import installed
from nnlo_opt.engine.search.custom import check_pruner, check_search
from nnlo_opt.engine.search.registry import AUTO, search_names

LOG_LEVELS = ("trace", "debug", "info", "warn", "error")
#: levels that imply `--quiet`
QUIET_LEVELS = ("warn", "error")
#: name of a run in its files
TRIAL_NAME = "train"
#: data sets of features and labels
FEATURES, LABELS = "features", "labels"


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command.

    Args:
        name: Python name, with underscores; `flag` is its form on the command line.
        metavar: placeholder of the value in the help: its unit or meaning; empty for a flag.
        kind: how a value is parsed and checked.
        help: what the option does, without its default.
        default: value if the option is not given.
        shown: description of the default if its value is not enough.
        example: a value as text, for the reference page.
        bare: value if the option is given without one; None if it needs one.
        short: the only form on the command line, if not `--name`.
        also: second form on the command line.
        common: True if the option is in the short help, with its `help` up to the first semicolon.
        python: True if `nnlo_opt.optimize` has the option, too.
        group: title of its group in the help.
    """

    name: str
    metavar: str
    kind: Kind
    help: str
    default: Any = None
    shown: str = ""
    example: str = ""
    bare: str | None = None
    short: str = ""
    also: str = ""
    common: bool = False
    python: bool = True
    group: str = ""

    @property
    def flag(self) -> str:
        """Form of the option on the command line, such as `--train-data`."""
        return self.short or "--" + self.name.replace("_", "-")

    @property
    def default_text(self) -> str:
        """Default as text; empty if not worth showing."""
        if self.shown or self.default is None or self.default is False or self.default in ((), {}):
            return self.shown
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    @property
    def flags(self) -> tuple[str, ...]:
        """Forms of the option on the command line, including `--no-` of a switch."""
        no = self.flag.replace("--", "--no-", 1) if self.kind.action == "switch" else ""
        return tuple(filter(None, (self.flag, self.also, no)))

    @property
    def help_text(self) -> str:
        """Help with the default and an example."""
        known = {"default": self.default_text, "example": self.example}
        more = ", ".join(f"{name}: {text}" for name, text in known.items() if text)
        return f"{self.help} ({more})" if more else self.help

    def read(self, value: object) -> Any:
        """Parse text, or check a value given in Python; ConfigurationError if it is invalid."""
        try:
            return self.kind(value)
        except WrongValueError as error:
            name = either(self.flag, self.name) if self.python else self.flag
            raise ConfigurationError(f"`{name}` {error}") from None


def read(given: Mapping[str, object], options: Iterable[Option]) -> SimpleNamespace:
    """Return the values of all options by name; `given`: name -> text or Python value.

    Raises:
        ConfigurationError: a value is invalid. None or a missing value means the default.
    """
    values = {option.name: (option, given.get(option.name)) for option in options}
    return SimpleNamespace(
        **{name: option.default if value is None else option.read(value) for name, (option, value) in values.items()}
    )


def _group(title: str, *options: Option) -> tuple[Option, ...]:
    return tuple(replace(option, group=title) for option in options)


_DEFAULTS, _PLAN, _PRUNING = TrainingOptions(), SearchPlan(num_iterations=1), PruningPlan(name="none")


def _training(name: str, metavar: str, kind: Kind, **more: Any) -> Option:
    """Return an option with the name and default of a field of `TrainingOptions`."""
    return Option(name, metavar, kind, default=getattr(_DEFAULTS, name), **more)


# A table, laid out by hand.
# fmt: off
_NUMBER = finite()
_TOGETHER = [name for name, rule in RULES.items() if rule.averages_every_batch]
_EACH = [name for name in RULES if name not in _TOGETHER]
SEED = Option("seed", "N", whole(0), default=0, example="42", common=True,
    help="random seed; of the search, the folds, the initial weights and the shuffling")
GRACE = Option("grace", "TIME", duration(1), default=60.0, example="120", python=False,
    help="time after SIGUSR1 to checkpoint all running trials and exit with code 75, so that the run can be resumed")

MODEL_AND_DATA = _group(
    "model and data",
    Option("model", "MODEL", CODE, example="my_model.py", python=False, common=True,
        help="file.py, builtin (mnist, cifar10, topclass, …) or saved model (.json, .keras, .h5, .pt); a file.py "
             "defines get_model(**parameters) or objective(parameters, comm, report)"),
    Option("fresh_weights", "", FLAG, default=False, python=False,
        help="re-initialise the weights of a saved Keras model (.keras, .h5, or a .json with weights beside it) "
             "from the seed"),
    Option("train_data", "LIST", PATH, example="train.list", common=True,
        help="list of HDF5 files of training samples; a text file with one name per line"),
    Option("val_data", "LIST", PATH, example="test.list", common=True,
        help="list of HDF5 files of validation samples; a text file with one name per line"),
    Option("test_data", "LIST", PATH, example="test.list", python=False,
        help="list of HDF5 files on which the saved model is evaluated once, at the end; a text file with one name "
             "per line"),
    Option("features_name", "NAME", TEXT, shown=FEATURES, example="images",
        help="data set of the features; for several inputs a group, or names separated by commas"),
    Option("labels_name", "NAME", TEXT, shown=LABELS, example="classes",
        help="data set of the labels; for several outputs a group, or names separated by commas"),
    _training("loss", "NAME", TEXT, example="mean_squared_error", help="Keras name of the loss",
        shown="get_loss of the model module, that of a compiled model, or inferred and logged"),
    Option("backend", "NAME", kinds.or_installed(("keras", "torch"), installed.FRAMEWORKS),
        shown="as in the model module", example="torch",
        help="library of the model: keras, or torch for a torch.nn.Module"),
    Option("keras_backend", "NAME", one_of("tensorflow", "jax", "torch"), shown="KERAS_BACKEND, else tensorflow",
        example="jax", help="library that Keras computes with: tensorflow, jax or torch"),
)
NAMED_MODEL = Option("model", "FILE", CODE, shown="the file of the run, if only you can have written it",
    example="my_model.py", help="file of the model, which is executed")
READING = _group(
    "reading and weighting samples",
    Option("class_weights", "DICT", kinds.CLASS_WEIGHTS, shown="1 for every sample", example="balanced",
        help='weights of the classes in training, such as "{0: 1.0, 1: 5.0}" (other classes: 1), or balanced for '
             "the same total weight of all classes"),
    Option("sample_weights_name", "NAME", TEXT, shown="1 for every sample", example="weights",
        help="data set with the weight of each sample in training"),
    Option("memory_limit", "MIB", whole(0, "MiB"),
        shown="a quarter of the node's free memory, divided among its ranks", example="4096",
        help="memory for samples in each rank; samples that do not fit are read from the files in every epoch, in the "
             "same order"),
    Option("preload_data", "N", whole(0), default=1, example="2",
        help="number of 64 MiB windows that a thread reads ahead if the samples do not fit into memory"),
    Option("verify_data", "", FLAG, default=False,
        help="before training, compare all data files with the SHA-256 in LIST.sha256 beside each list, which "
             "GetData writes"),
    Option("external_data", "", FLAG, default=False,
        help="accept HDF5 files with virtual data sets, or with links or external data sets in other files; "
             "refused by default, because someone else's file could refer to any file that you can read"),
    Option("cache_data", "DIR", PATH, shown="$DATA_CACHE, else files are read in place", example="/local/cache",
        help="node-local folder for copies of the data files that its ranks read; the copies are removed at the end"),
    Option("copy_command", "COMMAND", CODE, shown="$DATA_COPY_COMMAND, else this process copies", example="cp {} {}",
        help="command, run without a shell, that copies one file, such as 'scp {} {}'"),
)
TRAINING = _group(
    "training (may be searched too, as train.batch, train.learning_rate, …)",
    _training("batch", "SAMPLES", whole(unit="samples"), example="64", common=True,
        help="samples per gradient; each worker has its own batch"),
    _training("epochs", "EPOCHS", whole(unit="epochs"), example="10", common=True,
        help="passes over the training data; all workers together"),
    _training("mode", "RULE", kinds.or_own([*RULES], TEXT.convert, installed.UPDATE_RULES), example="allreduce",
        help=f"update rule: {', '.join(_EACH)}, or {' or '.join(_TOGETHER)}, in which every rank trains"),
    _training("synchronous", "", FLAG, shown="each worker trains at its own pace",
        help="average the gradients of all workers"),
    _training("sync_every", "BATCHES", whole(unit="batches"), example="10",
        help="batches between two exchanges of a worker with its master"),
    _training("optimizer", "NAME", TEXT, shown="that of a compiled model, else adam", example="sgd", common=True,
        help="sgd, adam, adamw, lion or another; the others are nadam, rmsprop, adagrad and adadelta; with "
             "Keras's defaults, at the master"),
    _training("learning_rate", "RATE", kinds.POSITIVE, shown="the optimizer's own", example="1e-3", also="--lr",
        common=True, help="learning rate of the optimizer"),
    _training("optimizer_params", "DICT", kinds.DICTIONARY, example="{'momentum': 0.9}",
        help="arguments of the optimizer, such as \"{'momentum': 0.9}\""),
    _training("weight_decay", "FACTOR", finite(0), shown="adamw: its own; else none", example="0.01",
        help="decoupled weight decay: each step first takes learning rate times FACTOR off every weight"),
    _training("no_decay", "REGEX", TEXT, example="'bias|norm'", shown="all decay",
        help="regular expression; arrays of the model with a match in their names do not decay"),
    _training("clip_norm", "NORM", kinds.POSITIVE, shown="no clipping", example="1.0",
        help="limit of the norm of the gradient of each array: of the averaged gradient if workers wait for each "
             "other, else of a worker's own"),
    _training("global_clip_norm", "NORM", kinds.POSITIVE, shown="no clipping", example="1.0",
        help="limit of the norm of the whole gradient; as for --clip-norm"),
    _training("clip_value", "LIMIT", kinds.POSITIVE, shown="no clipping", example="0.5",
        help="limit of the absolute value of each number of the gradient; as for --clip-norm"),
    _training("ema", "MOMENTUM", finite(0), shown="the last weights", example="0.99",
        help="evaluate and save the exponential moving average of the central weights over their updates"),
    _training("warmup_epochs", "EPOCHS", kinds.EPOCHS_OR_SHARE, example="0.5",
        help="epochs, fractions allowed, or a share of the training such as 10%, over which the learning rate rises "
             "linearly from 0 to its value"),
    _training("lr_schedule", "RULE", TEXT, example="cosine",
        help="constant, linear, cosine (both to 0 at the last epoch), one-cycle (up from 1/25 over 30% of the "
             "training or the warm-up, then down, by cosines), exponential:RATE (times RATE each epoch) or "
             "step:EVERY:FACTOR (times FACTOR every EVERY epochs)"),
    _training("early_stopping", "RULE", TEXT, example="val_loss,<,3", common=True,
        help="metric,<,patience, such as val_loss,<,3; stop after that many epochs without improvement and keep "
             "the best weights; ~< compares means over that many epochs; name:metric is a metric of one output or "
             "model, such as energy:val_loss"),
    _training("target_metric", "RULE", TEXT, example="val_accuracy,>,0.97",
        help="metric,>,value: stop when the metric passes the value; name:metric is a metric of one output or model"),
    Option("n_processes", "RANKS", whole(unit="ranks"), default=1, example="2",
        help="ranks per worker, whose gradients are averaged before each push; not searchable"),
    Option("n_masters", "MASTERS", whole(unit="masters"), default=1, example="3",
        help="masters per block: above 1, one top master and sub-masters, each of which leads a group of workers "
             "and acts as one worker of the top master; not searchable"),
    _training("exchange", "HOW", TEXT, example="messages",
        help="auto: use shared memory if all workers are on their master's node: each worker updates the weights "
             "itself, unless workers wait for each other, and in allreduce each rank updates a part of them; "
             "messages: send everything"),
    _training("overlap", "", kinds.SWITCH,
        shown="on if updates are sent as messages and workers do not wait for each other",
        help="compute the next batch while the master answers, which makes gradients one batch older; implies "
             "--exchange messages"),
    _training("staleness", "POLICY", TEXT, example="drop:8",
        help="downpour: weight of an update that is n versions old: none (always 1), scale (1/(1+n)), or drop:N (0 "
             "beyond N)"),
    _training("momentum_correction", "", FLAG,
        help="downpour with sgd and momentum: reduce the optimizer's momentum by the momentum that stale gradients "
             "add, from their measured staleness, so that the total is the given value"),
    _training("worker_optimizer", "NAME", TEXT, shown="easgd: --optimizer; else sgd", example="adam",
        help="optimizer for a worker's local steps between exchanges"),
    _training("worker_optimizer_params", "DICT", kinds.DICTIONARY, example="{'beta_1': 0.5}",
        help="arguments of the worker's optimizer; in the form of --optimizer-params"),
    *(Option(own.name, own.metavar, _NUMBER, default=own.default, shown=own.shown, example=own.example,
        help=f"{rule.name}: {own.help}") for rule in RULES.values() for own in rule.options),
    Option("no_shuffle", "", FLAG, default=False, help="keep the order of samples in every epoch"),
)
RUN = _group(
    "run",
    Option("checkpoint", "NAME", kinds.RUN_PATH, shown="--trial-name, else <model>-001, …", example="my-run",
        common=True, help=f"name of the run; its directory is {RUNS}/NAME, or NAME itself if it is a path"),
    Option("trial_name", "NAME", TEXT, shown=TRIAL_NAME, example="first", help="name of the run in its files"),
    _training("checkpoint_interval", "EPOCHS", whole(unit="epochs"), example="5",
        help="epochs between two checkpoints of a training"),
    GRACE,
    Option("hang_timeout", "TIME", duration(0), default=600.0, example="30m", python=False,
        help="kill a rank that neither trains a batch nor receives a message for this long (three times as long "
             "while a model is built or compiled), or that is stopped, and write the stacks of its threads to its "
             "log; also restart the search process if it makes no suggestion for this long; your own code that "
             "computes an objective or a figure of merit is limited only by --trial-timeout; 0: off"),
    Option("max_attempts", "N", whole(), default=_PLAN.max_attempts, example="5",
        help="fail a trial after a fold has lost ranks, or its script (killed, out of memory, hung), this many "
             "times in a row without completing another epoch"),
    Option("overwrite", "", FLAG, default=False, common=True, help="replace an existing run of the same name"),
    SEED,
    Option("quiet", "", FLAG, default=False, python=False, common=True,
        help="print only errors and the final summary; --log-file still gets every line"),
    Option("log_level", "LEVEL", one_of(*LOG_LEVELS), default="info", example="warn", python=False,
        help=f"detail of the logs: {', '.join(LOG_LEVELS)}; trace includes every message between ranks, warn and "
             "error imply --quiet"),
    Option("log_file", "FILE", PATH, example="search.log", python=False,
        help="also write the log lines of rank 0 to this file"),
    Option("mirror", "TOOL", many(kinds.or_installed(TOOLS, installed.EXPORTERS), "extend"),
        default=(), example="optuna", python=False,
        help="write another tool's files to the run directory during the run: optuna (optuna.log, for "
             "optuna-dashboard) or tensorboard (the folder tensorboard/)"),
    Option("options", "FILE", PATH, example="run.yaml", python=False, common=True,
        help="YAML file with options, one per line, such as `epochs: 10`; a list repeats an option, true and false "
             "are for flags, and the command line takes precedence"),
    Option("on_end", "COMMAND", CODE, example="mail -s $NNLO_OPT_STATE me < $NNLO_OPT_RUN/summary.json", python=False,
        help="shell command to run on rank 0 when the run has ended, for at most a minute; environment variables "
             "contain the run, its state and its best trial; if the command fails, the terminal shows it"),
    Option("verbose", "", FLAG, default=False, python=False, help="the same as --log-level debug"),
)
MACHINE = _group(
    "devices and monitoring",
    Option("max_gpus", "N", whole(0, "GPUs"), shown="all visible GPUs", example="4",
        help="maximum number of GPUs to use per node, assigned in turn to the ranks that train; 0: CPU only"),
    Option("master_gpu", "", FLAG, default=False, shown="masters see none",
        help="assign GPUs to masters, too; only useful if masters compute"),
    Option("monitor", "", FLAG, default=False, shown="off",
        help="record CPU (% of a core), memory (MB) and NVIDIA GPU of every worker in the history, for each epoch"),
    Option("timeline", "", FLAG, default=False, shown="off", python=False,
        help="write timeline.json, the activity of every rank over time; open it in ui.perfetto.dev"),
    Option("thread_validation", "", FLAG, default=False, python=False,
        help="ignored, kept for compatibility with NNLO"),
)
SEARCH = _group(
    "search",
    Option("search_space", "MODULE", CODE, shown="get_model.parameter_range of the model module", common=True,
        example="search_spaces/mnist.py", python=False,
        help="Python file or module with the search space; a list of Real, Integer and other parameters, which "
             "`nnlo-opt space` prints"),
    Option("fix", "NAME=VALUE", kinds.FIXED, default={}, example="dropout=0.5",
        help="fix a parameter of the search space to one value; repeatable"),
    Option("hyper_opt", "NAME", kinds.or_own((AUTO, *search_names()), check_search, installed.SEARCH_ALGORITHMS),
        default="bayesian", example="sobol", common=True,
        help="bayesian, freeze-thaw, bayesian-skopt, genetic, random, sobol or grid; freeze-thaw includes a "
             "pruner; auto: freeze-thaw if trials report epochs and can be paused, else bayesian; with the extra "
             "[optuna] tpe, gp and cmaes; or a custom one, FILE.py:CLASS"),
    Option("surrogate", "NAME", one_of(*SURROGATES), shown=SURROGATES[0], example="et",
        help="model of bayesian-skopt: gp (Gaussian process), et (extra trees), rf (random forest) or gbrt "
             "(gradient boosting)"),
    Option("acquisition", "NAME", one_of(*ACQUISITIONS), shown=ACQUISITIONS[0], example="lcb",
        help="acquisition function of bayesian-skopt: ei (expected improvement), lcb (lower confidence bound) or "
             "pi (probability of improvement)"),
    Option("ga_populations", "TRIALS", whole(), shown=f"{DEFAULT_POPULATION}", example="20",
        help="genetic: completed trials per generation"),
    Option("grid_points", "N", whole(), shown=f"{DEFAULT_POINTS}", example="3",
        help="grid: number of values of a continuous parameter, evenly spaced under its prior, bounds included"),
    Option("start_point", "NAME=VALUE,...", many(kinds.START_POINT), default=(), example="n_units=64,dropout=0.3",
        help="point of the search space to try first; the search completes a partial one; repeatable"),
    Option("warm_start", "RUN", many(kinds.EARLIER, "extend"), default=(), example="checkpoints/my-run",
        help="earlier runs whose complete trials the search learns from; they do not count as trials of this run, "
             "and their points are not tried again; each is a run (name or directory), an Optuna study (a file or "
             "URL, with :STUDY if there are several), or a CSV with the columns of results.csv; from Python also a "
             "result, a `Run` or a data frame"),
    Option("block_size", "RANKS", whole(unit="ranks"), default=2, shown="2; 1 for an objective without `comm`",
        example="4", common=True,
        help="ranks that train one trial; a master and its workers, or a single process if 1"),
    Option("n_fold", "FOLDS", whole(), default=_PLAN.n_fold, example="5", common=True,
        help="folds of cross validation; 1: use the given training and validation data"),
    Option("fold_by", "UNIT", TEXT, default="samples", example="files",
        help="what to split into folds: samples (stratified by class), files, or groups of samples with equal "
             "values in the data set of this name"),
    Option("keep_weights", "WHICH", kinds.KEPT, shown="all", example="best:10", python=False,
        help="best:N: keep only the weights of the N best trials and of the Pareto set, and remove others during "
             "the search; all: keep the weights of every trial; may be changed on resume"),
    Option("opt_restore", "", FLAG, default=False, common=True, help="resume the run from where it stopped"),
    Option("join", "TIME", duration(5), example="60s", bare="120", python=False,
        help="share the run with other jobs of the same command, which may come and go at any time: the first one "
             "coordinates the search, the others bring their blocks, and if the coordinator's job ends, another one "
             "takes its place; needs --checkpoint in a folder that all jobs see. A job that shows no sign of life for "
             "this long counts as gone; 120 s if none is given, and the same for all jobs"),
    Option("command", "COMMAND", CODE, example="python train.py --lr {lr}", python=False,
        help="command of a script that evaluates a trial, instead of a model; started without a shell on every "
             "rank of a block, like torchrun. {NAME} stands for a parameter, {args} for all as --NAME=VALUE, "
             "{args:FORM} for all in other forms (words, hydra, flags, no-flags, lists, repeat, optional), "
             "{NAME:FORM} for one, {trial} for the trial's number, {folder} for its folder, {save} for an empty "
             'folder to fill before a report line has "checkpoint": true, {checkpoint} for the last save, {ranks} '
             'for the number of ranks if a single script starts its own processes. A line {"epoch": 3, "value": 0.2} '
             'is a report, and the last {"value": 0.2} the result'),
    Option("command_folder", "WHERE", one_of("links", "here", "empty"), shown="links", example="empty", python=False,
        help="where scripts of --command start; links: each trial in a separate folder, which is {folder}, with "
             "links to what was in the starting folder when the run began; empty: the same without links; here: all "
             "in the starting folder; may not be changed on resume"),
    Option("command_own", "NAME", many(kinds.TOP_NAME, "extend"), default=(), example="snapshot.pt lightning_logs",
        python=False,
        help="entries of the starting folder that are not linked into the folders of trials, so that each trial "
             "has its own; more may be added on resume"),
    Option("report_pattern", "REGEX", TEXT, example=r"epoch (?P<epoch>\d+) .* accuracy (?P<value>\S+)", python=False,
        help="regular expression for report lines in the output of --command, with the groups epoch and value"),
    Option("result_pattern", "REGEX", TEXT, example=r"accuracy: (?P<value>\S+)", python=False,
        help="regular expression for the result line in the output of --command, with the group value; the last "
             "match counts"),
    Option("try_output", "LOG", PATH, example="train.log", python=False,
        help="show what a search would read from a file with a script's output, given --report-pattern, "
             "--result-pattern and --objective, and exit; exit code 1 if the trial would fail"),
    Option("example", "NAME", CODE, example="mnist", python=False,
        help="builtin model (mnist, cifar10, topclass, …) if no --model is given; mnist if neither is given"),
)
PRUNING = _group(
    "stopping trials early",
    Option("pruner", "NAME", kinds.or_own(("none", *PRUNERS), check_pruner, installed.PRUNERS), default="none",
        example="asha", common=True,
        help="none, median, asha or hyperband; median: stop a trial that is worse than the median of the others at "
             "the same epoch; asha: pause all but the best trials at rungs of increasing epochs, and resume a trial "
             "once it is among the best; hyperband: the same with several first rungs; FILE.py:CLASS: a custom pruner"),
    Option("pruner_eta", "N", whole(2), shown=f"{_PRUNING.eta}", example="4",
        help="asha, hyperband: one in N trials passes a rung, and each rung has N times the epochs of the previous "
             "one"),
    Option("pruner_min_epochs", "EPOCHS", whole(unit="epochs"), shown=f"{_PRUNING.min_epochs}", example="2",
        help="minimum epochs of every trial: the first rung (freeze-thaw: an eighteenth of a training unless "
             "given), or the epoch from which the median rule applies"),
    Option("pruner_min_trials", "TRIALS", whole(unit="trials"), shown=f"{_PRUNING.min_trials}", example="6",
        help="median: number of other trials that must have reached the same epoch"),
    Option("pruner_max_epochs", "EPOCHS", whole(unit="epochs"), shown="--epochs", example="27",
        help="asha, hyperband, freeze-thaw: epochs of a full training, from which the rungs are computed"),
    Option("fold_racing", "", FLAG, default=False,
        help="stop a trial whose first folds (at least 2) are worse than those of the best trial (paired t-test, p "
             "< 0.05)"),
)
COMPARISON = _group(
    "comparing trials",
    Option("objective", "METRIC:DIRECTION", many(kinds.OBJECTIVE), default=(), shown=str(DEFAULT), common=True,
        example="val_accuracy:max",
        help="metric to compare trials by, such as val_loss:min or val_acc:max; given several times, the search "
             "looks for the Pareto set, the trials that no other trial dominates, and the first objective is the "
             "figure of merit. name:metric:DIRECTION is a metric of one output. Besides metrics: "
             f"{', '.join(MEASURED)}; for an objective module: the keys of its dict, and train_s"),
    Option("outcome_constraint", "BOUND", many(kinds.OUTCOME), default=(), example="n_weights<100000",
        help="bound on a metric: NAME<NUMBER, or with <=, >, >=; names as for --objective. Only a trial whose "
             "means over the folds satisfy all constraints can be the best or in the Pareto set, and the search "
             "learns where trials are feasible; repeatable"),
    Option("figure_of_merit", "FUNCTION", CODE, shown=DEFAULT_FIGURE, example="my_figure.py:figure",
        help="file.py:function, module:function, or a function of the model module: called with the results of a "
             "fold, returns a number"),
    Option("objective_epoch", "WHICH", one_of(*EPOCHS), default=EPOCHS[0], example="best",
        help=f"{' or '.join(EPOCHS)}: use the weights and metrics of the last epoch (with early stopping, of the "
             "best), or of the epoch in which the first objective was best"),
    Option("direction", "WAY", one_of("min", "max"), shown=DEFAULT.direction, example="max", common=True,
        help="min or max: whether lower or higher is better; for the figure of merit of an objective module or of "
             "--figure-of-merit, unless --objective names a direction"),
)
TARGET = Option("target_objective", "FIGURE", _NUMBER, example="0.02",
    help="stop when the figure of merit of a trial is better than this; not with several objectives")
BUDGET = _group(
    "when a search stops (may be changed on resume; running trials end first)",
    Option("num_iterations", "TRIALS", whole(), default=10, shown="10; for grid, all points", example="50", common=True,
        help="number of trials; failed trials count; may be raised on resume"),
    Option("timeout", "TIME", TIME, example="3600", common=True,
        help="start no new trial after this time; summed over all starts of the run"),
    Option("walltime", "TIME", TIME, example="3:55:00",
        help="time limit of this start: start no trial that would not finish in time, as estimated from earlier "
             "ones; shortly before the limit, checkpoint running trials and exit with code 75, so that the run can "
             "be resumed"),
    Option("trial_timeout", "TIME", TIME, example="0:30:00",
        help="fail a trial if one of its folds takes longer than this after its assignment, training or hanging; "
             "--hang-timeout is for idle ranks; if its block does not return from your own code, the search exits "
             "with code 1 and can be resumed"),
    Option("stop_after_no_improvement", "TRIALS", whole(), example="20",
        help="stop after this many trials in a row without improvement; with several objectives: without a new "
             "member of the Pareto set"),
    Option("max_failures", "TRIALS", whole(0), default=10, example="3",
        help="stop with exit code 1 if this many trials failed for the same reason and none succeeded; a model "
             "that cannot be built at this many points of the search space is refused at once; 0: never"),
    TARGET,
)
RESTORE = _group(
    "training driver",
    Option("restore", "NAME", TEXT, shown="name: that of --checkpoint or --trial-name", example="my-run", bare="",
        common=True, help="resume from the last checkpoint of the run NAME"),
    Option("from_run", "RUN[:TRIAL]", TEXT, example="checkpoints/my-run:7", python=False,
        help="retrain the best trial of a run, or trial TRIAL: with the run's options unless others are given, on "
             "its training and validation data together unless --train-data or --val-data is given; without "
             "validation, for as many epochs as its best weights had"),
)
# fmt: on

_BOTH = (*MODEL_AND_DATA, *READING, *TRAINING, *RUN, *MACHINE)
#: options of OptimizationDriver, in the order of its help
OPTIMIZATION_OPTIONS = (*_BOTH, *SEARCH, *PRUNING, *COMPARISON, *BUDGET)
#: options of TrainingDriver
TRAINING_OPTIONS = (*_BOTH, *RESTORE)
BY_NAME = {option.name: option for option in (*OPTIMIZATION_OPTIONS, *RESTORE)}
