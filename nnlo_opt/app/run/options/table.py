"""Table of all options.

The parsers of the command line, the reference page docs/reference/options.md and the arguments of `nnlo_opt.optimize`
are made from this table; `app.run.options.making` makes the validated values of a command.
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
from nnlo_opt.core.coordinator.instructions import SearchPlan
from nnlo_opt.core.search.base import ACQUISITIONS, SURROGATES
from nnlo_opt.core.search.genetic import DEFAULT_POPULATION
from nnlo_opt.core.search.grid import DEFAULT_POINTS
from nnlo_opt.core.search.pruning import PRUNERS, PruningPlan
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials.objectives import DEFAULT, EPOCHS, MEASURED
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
        name: as in Python, with underscores; `flag` is its form on the command line.
        metavar: stands for the value in the help: its unit, or what it names; empty for a flag.
        kind: how a value is read and checked.
        help: what the option does, without its default.
        default: value if the option is not given.
        shown: the default in words if its value alone does not say it.
        example: a value as text, for the reference page.
        bare: value of the option if it is given without one; None if it must have one.
        short: the option's only form on the command line if that is not `--name`.
        also: a second form on the command line.
        common: True if the option is in the short help, with its `help` up to the first semicolon.
        python: True if `nnlo_opt.optimize` has the option too.
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
        """Default in words; empty if there is nothing to say of it."""
        if self.shown or self.default is None or self.default is False or self.default in ((), {}):
            return self.shown
        return f"{self.default:g}" if isinstance(self.default, float) else str(self.default)

    @property
    def flags(self) -> tuple[str, ...]:
        """Forms of the option on the command line, `--no-` of a switch included."""
        no = self.flag.replace("--", "--no-", 1) if self.kind.action == "switch" else ""
        return tuple(filter(None, (self.flag, self.also, no)))

    @property
    def help_text(self) -> str:
        """Help with the default and an example."""
        known = {"default": self.default_text, "example": self.example}
        more = ", ".join(f"{name}: {text}" for name, text in known.items() if text)
        return f"{self.help} ({more})" if more else self.help

    def read(self, value: object) -> Any:
        """Return the value for a text, or for a value given in Python; ConfigurationError if it is wrong."""
        try:
            return self.kind(value)
        except WrongValueError as error:
            raise ConfigurationError(f"`{self.flag}` {error}") from None


def read(given: Mapping[str, object], options: Iterable[Option]) -> SimpleNamespace:
    """Return the values of all options by name; `given` are texts or values in Python.

    Raises:
        ConfigurationError: a value is wrong. A value that is None or missing stands for the default.
    """
    values = {option.name: (option, given.get(option.name)) for option in options}
    return SimpleNamespace(
        **{name: option.default if value is None else option.read(value) for name, (option, value) in values.items()}
    )


def _group(title: str, *options: Option) -> tuple[Option, ...]:
    return tuple(replace(option, group=title) for option in options)


_DEFAULTS, _PLAN, _PRUNING = TrainingOptions(), SearchPlan(num_iterations=1), PruningPlan(name="none")


def _training(name: str, metavar: str, kind: Kind, **more: Any) -> Option:
    """Return an option of the same name as a field of `TrainingOptions`, with its default."""
    return Option(name, metavar, kind, default=getattr(_DEFAULTS, name), **more)


# A table, laid out by hand.
# fmt: off
_NUMBER = finite()
_TOGETHER = [name for name, rule in RULES.items() if rule.averages_every_batch]
_EACH = [name for name in RULES if name not in _TOGETHER]
SEED = Option("seed", "N", whole(0), default=0, example="42", common=True,
    help="seed of all draws; of the search, the folds, the initial weights and the shuffling")
GRACE = Option("grace", "TIME", duration(1), default=60.0, example="120", python=False,
    help="time after SIGUSR1 to end with a checkpoint of each running trial and exit code 75, so that the run can "
         "be resumed")

MODEL_AND_DATA = _group(
    "model and data",
    Option("model", "MODEL", CODE, example="my_model.py", python=False, common=True,
        help="file.py, builtin (mnist, cifar10, topclass, …) or saved model (.json, .keras, .h5, .pt); a file.py "
             "defines get_model(**parameters) or objective(parameters, comm, report)"),
    Option("fresh_weights", "", FLAG, default=False, python=False,
        help="replace the weights of a saved Keras model (.keras, .h5, or a .json with weights beside it) by new ones, "
             "drawn by the seed"),
    Option("train_data", "LIST", PATH, example="train.list", common=True,
        help="list of HDF5 files of training samples; a text file with one name a line"),
    Option("val_data", "LIST", PATH, example="test.list", common=True,
        help="list of HDF5 files of validation samples; a text file with one name a line"),
    Option("test_data", "LIST", PATH, example="test.list", python=False,
        help="list of HDF5 files on which the saved model is measured once, at the end; a text file with one "
             "name a line"),
    Option("features_name", "NAME", TEXT, shown=FEATURES, example="images",
        help="data set of the features; for several inputs a group, or names separated by commas"),
    Option("labels_name", "NAME", TEXT, shown=LABELS, example="classes",
        help="data set of the labels; for several outputs a group, or names separated by commas"),
    _training("loss", "NAME", TEXT, example="mean_squared_error", help="Keras name of the loss",
        shown="get_loss of the model module, that of a compiled model, or inferred and announced"),
    Option("backend", "NAME", kinds.or_installed(("keras", "torch"), installed.FRAMEWORKS),
        shown="as the model module says", example="torch",
        help="library of the model: keras, or torch for a torch.nn.Module"),
    Option("keras_backend", "NAME", one_of("tensorflow", "jax", "torch"), shown="KERAS_BACKEND, else tensorflow",
        example="jax", help="library that Keras computes with: tensorflow, jax or torch"),
)
NAMED_MODEL = Option("model", "FILE", CODE, shown="the file of the run, if nobody but you can have written it",
    example="my_model.py", help="file of the model, which is executed")
READING = _group(
    "reading and weighting samples",
    Option("class_weights", "DICT", kinds.CLASS_WEIGHTS, shown="every sample 1", example="balanced",
        help='weight of the samples of each class in training, such as "{0: 1.0, 1: 5.0}", 1 for other classes; or '
             "balanced: all classes have the same total weight"),
    Option("sample_weights_name", "NAME", TEXT, shown="every sample 1", example="weights",
        help="data set with the weight of each sample in training"),
    Option("memory_limit", "MIB", whole(0, "MiB"),
        shown="a quarter of the node's free memory, divided among its ranks", example="4096",
        help="memory for samples in each rank; samples that do not fit are read from the files in every epoch, in the "
             "same order"),
    Option("preload_data", "N", whole(0), default=1, example="2",
        help="number of windows of 64 MiB that a thread reads ahead if the samples do not fit into memory"),
    Option("verify_data", "", FLAG, default=False,
        help="before training, compare all data files with the SHA-256 in LIST.sha256 beside each list, which "
             "GetData writes"),
    Option("external_data", "", FLAG, default=False,
        help="read HDF5 files with virtual data sets, and with links and external data sets that lead to other files; "
             "without it they are refused, because a file of somebody else may name any file that you can read"),
    Option("cache_data", "DIR", PATH, shown="$DATA_CACHE, else files are read in place", example="/local/cache",
        help="folder on the node for copies of the files whose samples its ranks read; the copies are removed at "
             "the end"),
    Option("copy_command", "COMMAND", CODE, shown="$DATA_COPY_COMMAND, else this process copies", example="cp {} {}",
        help="command, run without a shell, that copies one file, such as 'scp {} {}'"),
)
TRAINING = _group(
    "training (may be searched too, as train.batch, train.learning_rate, …)",
    _training("batch", "SAMPLES", whole(unit="samples"), example="64", common=True,
        help="samples of one gradient; each worker takes its own"),
    _training("epochs", "EPOCHS", whole(unit="epochs"), example="10", common=True,
        help="passes over the training data; counted over all workers"),
    _training("mode", "RULE", kinds.or_own([*RULES], TEXT.convert, installed.UPDATE_RULES), example="allreduce",
        help=f"update rule: {', '.join(_EACH)}, or {' or '.join(_TOGETHER)}, in which every rank trains"),
    _training("synchronous", "", FLAG, shown="each worker trains at its own pace",
        help="average the gradients of all workers"),
    _training("sync_every", "BATCHES", whole(unit="batches"), example="10",
        help="batches between two exchanges of a worker with its master"),
    _training("optimizer", "NAME", TEXT, shown="that of a compiled model, else adam", example="sgd", common=True,
        help="sgd, adam, rmsprop or adadelta; with Keras's defaults, at the master"),
    _training("learning_rate", "RATE", kinds.POSITIVE, shown="the optimizer's own", example="1e-3", also="--lr",
        common=True, help="learning rate of the optimizer"),
    _training("optimizer_params", "DICT", kinds.DICTIONARY, example="{'momentum': 0.9}",
        help="arguments of the optimizer, such as \"{'momentum': 0.9}\""),
    _training("warmup_epochs", "EPOCHS", finite(0, "epochs"), example="0.5",
        help="epochs over which the learning rate rises linearly from 0 to its value; fractions allowed"),
    _training("lr_schedule", "RULE", TEXT, example="cosine",
        help="constant, linear, cosine (both to 0 at the last epoch), exponential:RATE (times RATE each epoch) or "
             "step:EVERY:FACTOR (times FACTOR every EVERY epochs)"),
    _training("early_stopping", "RULE", TEXT, example="val_loss,<,3", common=True,
        help="metric,<,patience, such as val_loss,<,3; stop after so many epochs without improvement and keep the best "
             "weights; ~< compares means over as many epochs; a metric of one output or model is name:metric, such as "
             "energy:val_loss"),
    _training("target_metric", "RULE", TEXT, example="val_accuracy,>,0.97",
        help="metric,>,value: stop when the metric is past the value; a metric of one output or model is name:metric"),
    Option("n_processes", "RANKS", whole(unit="ranks"), default=1, example="2",
        help="ranks of each worker, which average their gradients before they push; not searchable"),
    Option("n_masters", "MASTERS", whole(unit="masters"), default=1, example="3",
        help="masters of a block: above 1 its first rank is a top master and the rest are sub-masters, each of "
             "which leads a group of workers and is one worker to the top master; not searchable"),
    _training("exchange", "HOW", TEXT, example="messages",
        help="auto: workers that are all on their master's node update its weights themselves, in shared memory, "
             "unless they wait for each other; in allreduce each rank updates a part of them; messages: everything "
             "is sent"),
    _training("overlap", "", kinds.SWITCH,
        shown="on if updates are sent as messages and workers do not wait for each other",
        help="a worker computes its next batch while the master answers, so that its gradients are a batch older; "
             "implies --exchange messages"),
    _training("staleness", "POLICY", TEXT, example="drop:8",
        help="downpour: weight of an update that is n versions old: none (always 1), scale (1/(1+n)), or drop:N (0 "
             "beyond N)"),
    _training("momentum_correction", "", FLAG,
        help="downpour, sgd with momentum: subtract the momentum that old gradients add, by their measured staleness, "
             "from the optimizer's momentum, so that both together have the value that is given"),
    _training("worker_optimizer", "NAME", TEXT, shown="easgd: --optimizer; else sgd", example="adam",
        help="optimizer of a worker's own steps between exchanges"),
    _training("worker_optimizer_params", "DICT", kinds.DICTIONARY, example="{'beta_1': 0.5}",
        help="arguments of the worker's optimizer, in the form of --optimizer-params"),
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
        help="end a rank that trains no batch and receives no message for so long (three times that while a model "
             "is built or compiled), or that is stopped, with the stacks of its threads in its log; and start the "
             "search process anew if it makes no suggestion for so long; your own code that computes an objective or a "
             "figure of merit may take any time, which --trial-timeout bounds; 0: no process is watched"),
    Option("max_attempts", "N", whole(), default=_PLAN.max_attempts, example="5",
        help="fail a trial if one of its folds loses ranks of its block, or its script (killed, out of memory, ended "
             "by --hang-timeout), so many times in a row without completing another epoch"),
    Option("overwrite", "", FLAG, default=False, common=True, help="replace a run of the same name"),
    SEED,
    Option("quiet", "", FLAG, default=False, python=False, common=True,
        help="write only errors and the end to the terminal; the end is the table and the sentences below it, and "
             "--log-file has every line"),
    Option("log_level", "LEVEL", one_of(*LOG_LEVELS), default="info", example="warn", python=False,
        help=f"detail of the logs: {', '.join(LOG_LEVELS)}; trace has every message between ranks, warn and error "
             "imply --quiet"),
    Option("log_file", "FILE", PATH, example="search.log", python=False,
        help="also write the lines of rank 0 to this file"),
    Option("mirror", "TOOL", many(kinds.or_installed(TOOLS, installed.EXPORTERS), "extend"),
        default=(), example="optuna", python=False,
        help="keep files of another tool in the run directory up to date while the run goes on: optuna (optuna.log, "
             "which optuna-dashboard shows) or tensorboard (the folder tensorboard/)"),
    Option("options", "FILE", PATH, example="run.yaml", python=False, common=True,
        help="YAML file with further options, a line `epochs: 10` for each; a list repeats an option, true or false is "
             "for flags, and the command line overrules the file"),
    Option("on_end", "COMMAND", CODE, example="mail -s $NNLO_OPT_STATE me < $NNLO_OPT_RUN/summary.json", python=False,
        help="command that a shell runs on rank 0 when the run has ended, for at most a minute; environment variables "
             "hold the run, its state and its best trial; if the command fails, a line on the terminal says so"),
    Option("verbose", "", FLAG, default=False, python=False, help="the same as --log-level debug"),
)
MACHINE = _group(
    "devices and monitoring",
    Option("max_gpus", "N", whole(0, "GPUs"), shown="all that the batch system left visible", example="4",
        help="largest number of GPUs used on each node, in turn by the ranks that train; 0: CPU only"),
    Option("master_gpu", "", FLAG, default=False, shown="masters see none",
        help="give masters a GPU too, in turn with the workers; only useful if masters compute"),
    Option("monitor", "", FLAG, default=False, shown="off",
        help="record CPU (% of a core), memory (MB) and NVIDIA GPU of every worker for each epoch in the history"),
    Option("timeline", "", FLAG, default=False, shown="off", python=False,
        help="write timeline.json, the activity of every rank over time; open it in ui.perfetto.dev"),
    Option("thread_validation", "", FLAG, default=False, python=False,
        help="ignored, kept for compatibility with NNLO"),
)
SEARCH = _group(
    "search",
    Option("search_space", "MODULE", CODE, shown="get_model.parameter_range of the model module", common=True,
        example="search_spaces/mnist.py", python=False,
        help="Python file or module with the parameters; a list of Real, Integer and others, which `nnlo-opt space` "
             "prints"),
    Option("fix", "NAME=VALUE", kinds.FIXED, default={}, example="dropout=0.5",
        help="fix a parameter of the search space to one value; repeatable"),
    Option("hyper_opt", "NAME", kinds.or_own((AUTO, *search_names()), check_search, installed.SEARCH_ALGORITHMS),
        default="bayesian", example="sobol", common=True,
        help="bayesian, freeze-thaw, bayesian-skopt, genetic, random, sobol or grid; freeze-thaw brings its own "
             "pruner; auto: freeze-thaw if trials report epochs and can be paused, else bayesian; with the extra "
             "[optuna] tpe, gp and cmaes; or one's own, FILE.py:CLASS"),
    Option("surrogate", "NAME", one_of(*SURROGATES), shown=SURROGATES[0], example="et",
        help="model of bayesian-skopt: gp (Gaussian process), et (extra trees), rf (random forest) or gbrt "
             "(gradient boosting)"),
    Option("acquisition", "NAME", one_of(*ACQUISITIONS), shown=ACQUISITIONS[0], example="lcb",
        help="acquisition function of bayesian-skopt: ei (expected improvement), lcb (lower confidence bound) or "
             "pi (probability of improvement)"),
    Option("ga_populations", "TRIALS", whole(), shown=f"{DEFAULT_POPULATION}", example="20",
        help="population of genetic: completed trials of one generation"),
    Option("grid_points", "N", whole(), shown=f"{DEFAULT_POINTS}", example="3",
        help="number of values that grid takes of a continuous parameter, evenly spaced by its prior, with both "
             "bounds"),
    Option("start_point", "NAME=VALUE,...", many(kinds.START_POINT), default=(), example="n_units=64,dropout=0.3",
        help="point of the search space to try first, or a part of one, which the search completes; repeatable"),
    Option("warm_start", "RUN", many(kinds.EARLIER, "extend"), default=(), example="checkpoints/my-run",
        help="earlier runs, whose complete trials the search learns from; they do not count as trials of this run, and "
             "their points are not tried again; each is a run by its name or directory, an Optuna study (a file or a "
             "URL, and :STUDY if it holds several), or a CSV with the columns of results.csv; from Python also a "
             "result, a `Run` or a data frame"),
    Option("block_size", "RANKS", whole(unit="ranks"), default=2, shown="2; 1 for an objective without `comm`",
        example="4", common=True,
        help="ranks that train one trial; a master and its workers, or with 1 a single-process trainer"),
    Option("n_fold", "FOLDS", whole(), default=_PLAN.n_fold, example="5", common=True,
        help="folds of the cross validation; 1: the given training and validation data"),
    Option("fold_by", "UNIT", TEXT, default="samples", example="files",
        help="unit of which folds are made: samples (stratified by class), files, or the name of a data set whose "
             "equal values stay together"),
    Option("keep_weights", "WHICH", kinds.KEPT, shown="all", example="best:10", python=False,
        help="best:N: keep only the trained weights of the N best trials and of the Pareto set, and remove all others "
             "while the search runs; all: keep the weights of every trial; may be changed on resume"),
    Option("opt_restore", "", FLAG, default=False, common=True, help="resume the run from where it stopped"),
    Option("command", "COMMAND", CODE, example="python train.py --lr {lr}", python=False,
        help="script that computes the value of a trial, instead of a model; started without a shell on every rank of "
             "a block, as torchrun would. {NAME} stands for a parameter, {args} for all as --NAME=VALUE, {args:FORM} "
             "for all in other forms (words, hydra, flags, no-flags, lists, repeat, optional), {NAME:FORM} for one, "
             "{trial} for its number, {folder} for its folder, {save} for an empty folder to fill before a report line "
             "has \"checkpoint\": true, {checkpoint} for the last save, {ranks} for the ranks of the block if a single "
             "script is to start its own processes. A line {\"epoch\": 3, \"value\": 0.2} is a report, and the last "
             "{\"value\": 0.2} the result"),
    Option("command_folder", "WHERE", one_of("links", "here", "empty"), shown="links", example="empty", python=False,
        help="where the scripts of --command start; links: each trial in a folder of its own, which is {folder}, with "
             "links to what was in the starting folder when the run began; empty: the same without links; here: all in "
             "the starting folder; may not be changed on resume"),
    Option("command_own", "NAME", many(kinds.TOP_NAME, "extend"), default=(), example="snapshot.pt lightning_logs",
        python=False,
        help="names of files and folders at the top of the starting folder to which trials get no links, so that each "
             "has its own; further ones may be given on resume"),
    Option("report_pattern", "REGEX", TEXT, example=r"epoch (?P<epoch>\d+) .* accuracy (?P<value>\S+)", python=False,
        help="regular expression of a line of --command that is a report, with the groups epoch and value"),
    Option("result_pattern", "REGEX", TEXT, example=r"accuracy: (?P<value>\S+)", python=False,
        help="regular expression of a line of --command with the result, in the group value; the last one counts"),
    Option("try_output", "LOG", PATH, example="train.log", python=False,
        help="print what a search would read in a file with the output of a script, by --report-pattern, "
             "--result-pattern and --objective, and exit: with code 1 if a trial would fail"),
    Option("example", "NAME", CODE, example="mnist", python=False,
        help="builtin model (mnist, cifar10, topclass, …) if no --model is given; mnist if neither is given"),
)
PRUNING = _group(
    "stopping trials early",
    Option("pruner", "NAME", kinds.or_own(("none", *PRUNERS), check_pruner, installed.PRUNERS), default="none",
        example="asha", common=True,
        help="none, median, asha or hyperband; median: stop a trial that is worse than the median of the others at the "
             "same epoch; asha: pause all but the best trials at rungs of more and more epochs, and resume a trial "
             "when it is among the best; hyperband: the same with several first rungs; FILE.py:CLASS: one's own"),
    Option("pruner_eta", "N", whole(2), shown=f"{_PRUNING.eta}", example="4",
        help="asha, hyperband: one trial in N passes a rung, and the next rung has N times its epochs"),
    Option("pruner_min_epochs", "EPOCHS", whole(unit="epochs"), shown=f"{_PRUNING.min_epochs}", example="2",
        help="epochs that every trial gets: the first rung (freeze-thaw: an eighteenth of a training unless given), or "
             "the epoch from which the median rule applies"),
    Option("pruner_min_trials", "TRIALS", whole(unit="trials"), shown=f"{_PRUNING.min_trials}", example="6",
        help="median: number of other trials that must have reached the same epoch"),
    Option("pruner_max_epochs", "EPOCHS", whole(unit="epochs"), shown="--epochs", example="27",
        help="asha, hyperband, freeze-thaw: epochs of a whole training, of which the rungs are fractions"),
    Option("fold_racing", "", FLAG, default=False,
        help="stop a trial whose first folds, at least 2, are worse than those of the best trial (paired t-test, p "
             "< 0.05)"),
)
COMPARISON = _group(
    "comparing trials",
    Option("objective", "METRIC:DIRECTION", many(kinds.OBJECTIVE), default=(), shown=str(DEFAULT), common=True,
        example="val_accuracy:max",
        help="metric to compare trials by, such as val_loss:min or val_acc:max; given several times, the search "
             "looks for the trials that no other trial beats in all objectives (the Pareto set), and the first "
             "objective is the figure of merit. A metric of one output is name:metric:DIRECTION. Besides metrics: "
             f"{', '.join(MEASURED)}; with an objective module: the keys of its dict, and train_s"),
    Option("outcome_constraint", "BOUND", many(kinds.OUTCOME), default=(), example="n_weights<100000",
        help="bound of a metric as NAME<NUMBER, or with <=, >, >=; names are those of --objective. Only a trial whose "
             "mean over the folds keeps all bounds can be the best or in the Pareto set, and the search learns where "
             "they are kept; may be given several times"),
    Option("figure_of_merit", "FUNCTION", CODE, shown="1 - val_acc, else val_loss", example="my_figure.py:figure",
        help="file.py:function, module:function, or the name of a function of the model module, which is called "
             "with the results of a fold and returns a number"),
    Option("objective_epoch", "WHICH", one_of(*EPOCHS), default=EPOCHS[0], example="best",
        help=f"{' or '.join(EPOCHS)}: epoch whose weights and metrics count, the last (with --early-stopping its "
             "best) or the one in which the first objective was best"),
    Option("direction", "WAY", one_of("min", "max"), shown=DEFAULT.direction, example="max", common=True,
        help="min or max: whether low or high figures are better; for the figure of merit of an objective module or of "
             "--figure-of-merit, unless --objective names a direction"),
)
TARGET = Option("target_objective", "FIGURE", _NUMBER, example="0.02",
    help="stop when a figure of merit is better than this; not with several objectives")
BUDGET = _group(
    "when a search stops (may be changed on resume; running trials end first)",
    Option("num_iterations", "TRIALS", whole(), default=10, shown="10; for grid, all points", example="50", common=True,
        help="trials of the run; failed trials count, and the number may be raised on resume"),
    Option("timeout", "TIME", TIME, example="3600", common=True,
        help="begin no trial once the search has taken so long; summed over all starts of the run"),
    Option("walltime", "TIME", TIME, example="3:55:00",
        help="time of this start: begin no trial that would not end in time, estimated "
             "from earlier trials; shortly before the end, stop and checkpoint what still runs and exit with code "
             "75, so that the run can be resumed"),
    Option("trial_timeout", "TIME", TIME, example="0:30:00",
        help="fail a trial if one of its folds takes longer than this since it was "
             "assigned, whether it trains or hangs (--hang-timeout is for ranks that do nothing); if its block "
             "does not return from your own code, the search ends with code 1 and can be resumed"),
    Option("stop_after_no_improvement", "TRIALS", whole(), example="20",
        help="stop after so many trials in a row that are not better than the trials before; with several objectives: "
             "that do not enter the Pareto set"),
    Option("max_failures", "TRIALS", whole(0), default=10, example="3",
        help="stop with exit code 1 when so many trials have failed for the same reason and none has succeeded; a "
             "model that cannot be built at so many points of the search space is refused at once; 0: never"),
    TARGET,
)
RESTORE = _group(
    "training driver",
    Option("restore", "NAME", TEXT, shown="name: that of --checkpoint or --trial-name", example="my-run", bare="",
        common=True, help="resume from the last checkpoint of the run NAME"),
    Option("from_run", "RUN[:TRIAL]", TEXT, example="checkpoints/my-run:7", python=False,
        help="train the best trial of a run, or the trial TRIAL, again: with the options of the run unless others are "
             "given, on all its data, training and validation together, unless --train-data or --val-data is given; "
             "if validation is left out, for as many epochs as its best weights had"),
)
# fmt: on

_BOTH = (*MODEL_AND_DATA, *READING, *TRAINING, *RUN, *MACHINE)
#: options of OptimizationDriver, in the order of its help
OPTIMIZATION_OPTIONS = (*_BOTH, *SEARCH, *PRUNING, *COMPARISON, *BUDGET)
#: options of TrainingDriver
TRAINING_OPTIONS = (*_BOTH, *RESTORE)
BY_NAME = {option.name: option for option in (*OPTIMIZATION_OPTIONS, *RESTORE)}
