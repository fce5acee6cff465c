"""Options of a command as frozen values, validated when they are made."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nnlo_opt.app.run.options.table import (
    BY_NAME,
    GRACE,
    OPTIMIZATION_OPTIONS,
    QUIET_LEVELS,
    SEED,
    TRAINING_OPTIONS,
    TRIAL_NAME,
    read,
)
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.comm.topology import TeamOptions
from nnlo_opt.core.coordinator.instructions import Budget, SearchPlan
from nnlo_opt.core.data.weights import ClassWeights
from nnlo_opt.core.search.base import SearchAlgorithm
from nnlo_opt.core.search.genetic import DEFAULT_POPULATION
from nnlo_opt.core.search.pruning import FREEZE_THAW, PRUNERS, Pruner, PruningPlan
from nnlo_opt.core.search.racing import MIN_FOLDS
from nnlo_opt.core.search.warm_start import Earlier
from nnlo_opt.core.space.space import Point
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.training.stopping import EarlyStopping, TargetMetric
from nnlo_opt.core.trials.objectives import DEFAULT, FIGURE, MEASURED, Comparison, Objective
from nnlo_opt.core.trials.run_directory import RUNS, RunRequest, existing_run
from nnlo_opt.core.update_rules.optimizers import make_optimizer
from nnlo_opt.engine.data.cache import parse_copy_command
from nnlo_opt.engine.models import losses
from nnlo_opt.engine.models.builders import names_objective, objective_in
from nnlo_opt.engine.models.torch import losses as torch_losses
from nnlo_opt.engine.objective.command import Command
from nnlo_opt.engine.objective.output import Output
from nnlo_opt.engine.objective.signature import text_takes
from nnlo_opt.engine.objective.template import Template
from nnlo_opt.engine.runtime.devices import GpuRequest
from nnlo_opt.engine.search.custom import check_halves, custom_name, is_custom, rules_with
from nnlo_opt.engine.search.registry import AUTO, options_of, search_names

_THREAD_VALIDATION = (
    "`--thread-validation` changes nothing here: validation is shared by the workers and never keeps a master busy."
)
#: options of `PruningPlan` that only some pruners have, with these pruners
_PRUNER_TAKES = {
    "eta": ("asha", "hyperband"),
    "max_epochs": ("asha", "hyperband", FREEZE_THAW),
    "min_trials": ("median",),
    "min_epochs": (*PRUNERS, FREEZE_THAW),
}
#: options that only a command has
_OF_COMMAND = ("report_pattern", "result_pattern", "command_folder", "command_own")
# fmt: off
#: options of some search algorithms only: name in `make_search` -> name on the command line
SEARCH_OPTIONS = {
    "surrogate": "--surrogate", "acquisition": "--acquisition",
    "population": "--ga-populations", "grid_points": "--grid-points",
}
# fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """Source of the samples; None stands for what the model module says."""

    train_data: Path | None = None
    val_data: Path | None = None
    #: the saved model is measured on it at the end
    test_data: Path | None = None
    #: True to train on the validation data, too, and validate nothing
    pooled: bool = False
    features_name: str | None = None
    labels_name: str | None = None
    #: "samples", "files", or the name of a data set whose equal values stay together
    fold_by: str = BY_NAME["fold_by"].default
    #: compare the data files with the checksums beside their lists before anything trains
    verify_data: bool = False
    #: True if data files may lead to other files; files are not copied then, as a copy would lead to none
    external_data: bool = False
    #: folder for copies of data files; None to read them in place
    cache: Path | None = None
    #: words of the command that copies a file, two with `{}`; None if this process copies
    copy_command: tuple[str, ...] | None = None
    #: bytes of samples that a rank may hold; None for a quarter of the node's free memory, divided among its ranks
    memory_bytes: int | None = None
    #: windows of samples read ahead if samples are not held in memory
    n_ahead: int = BY_NAME["preload_data"].default
    class_weights: ClassWeights | None = None
    #: data set with a weight for each sample
    sample_weights_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """Search algorithm with its options; None stands for the default of the algorithm."""

    #: name, FILE.py:CLASS or an object (`engine.search.custom`)
    algorithm: str | SearchAlgorithm = BY_NAME["hyper_opt"].default
    surrogate: str | None = None
    acquisition: str | None = None
    #: trials of a generation of the genetic algorithm (`--ga-populations`)
    population: int | None = None
    #: values of a continuous parameter in a grid
    grid_points: int | None = None
    #: points to try first
    start_points: tuple[Point, ...] = ()
    #: runs, studies and tables whose trials the search learns from; a text is the URL of a storage of Optuna
    warm_start: tuple[Path | str | Earlier, ...] = ()

    def __post_init__(self) -> None:
        for name, option in SEARCH_OPTIONS.items():
            if getattr(self, name) is not None and name not in options_of(self.algorithm):
                owner = next(owner for owner in search_names() if name in options_of(owner))
                raise ConfigurationError(
                    f"`{option}` is an option of `--hyper-opt {owner}`. Received: `--hyper-opt "
                    f"{custom_name(self.algorithm)}`; drop `{option}`, or choose {owner}."
                )
        if self.population == 1:
            raise ConfigurationError(
                "`--ga-populations` must be at least 2, as a child has two parents. Received: 1; leave it out for "
                f"{DEFAULT_POPULATION}."
            )

    def to_json(self) -> dict[str, object]:
        """Return everything that was given besides the algorithm, as plain data."""
        given = {name: value for name in SEARCH_OPTIONS if (value := getattr(self, name)) is not None}
        return {**given, "start_points": list(self.start_points)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """All options of a driver."""

    #: empty if there is a command
    model: str
    training: TrainingOptions
    run: RunRequest
    data: DataOptions = DataOptions()
    #: name in the history files
    trial_name: str = TRIAL_NAME
    #: parameters of the model in a training
    point: Point = field(default_factory=dict)
    #: JSON of the parameters of `point` that have tuples among their categories
    with_tuples: Sequence[dict[str, Any]] = ()
    seed: int = SEED.default
    log_level: str = "info"
    #: write only errors and the end to the terminal
    quiet: bool = False
    log_file: Path | None = None
    #: tools whose files are kept up to date while the run goes on
    mirror: tuple[str, ...] = ()
    #: command for a shell that the end of the run starts
    on_end: str | None = None
    command_line: tuple[str, ...] = ()
    #: name of the command, if it is not the driver's own
    program: str = ""
    gpus: GpuRequest = GpuRequest()  # noqa: RUF009  (frozen)
    #: record the load of each worker on its machine
    monitor: bool = False
    #: write the activity of every rank over time
    timeline: bool = False
    #: seconds after SIGUSR1 in which the start must have ended
    grace_s: float = GRACE.default
    #: seconds without progress after which a rank is ended; 0 if it is not watched
    hang_timeout_s: float = BY_NAME["hang_timeout"].default
    #: sentences for the user about options that were given
    remarks: tuple[str, ...] = ()
    #: library the model is made with; None to read it from its module
    backend: str | None = None
    #: library Keras computes with; None to take it from the environment
    keras_backend: str | None = None
    #: begin a saved Keras model with weights of its own
    fresh_weights: bool = False
    #: pruner of one's own (`engine.search.custom`), which `plan` has the name of
    custom_pruner: str | Pruner | None = None
    #: SHA-256 of a model that only an earlier run names (`engine.models.builders.open_model`); None if the user names
    #: it
    model_sha256: str | None = None
    #: ranks of each worker
    n_processes: int = 1
    #: masters of a block: the top master and its sub-masters
    n_masters: int = 1
    #: ranks of a block; this and all below are for OptimizationDriver
    block_size: int = 1
    search: SearchOptions = SearchOptions()
    search_space: str | None = None
    #: scripts that are the objective; None: there is a model
    command: Command | None = None
    #: parameters with a fixed value: name -> value as text
    fix: Mapping[str, str] = field(default_factory=dict)
    plan: SearchPlan = field(default_factory=lambda: SearchPlan(num_iterations=1))
    comparison: Comparison = Comparison()  # noqa: RUF009  (frozen)
    #: number of the best trials whose weights are kept; None: all trials
    keep_weights: int | None = None
    #: seconds that this start may take; None without a limit
    walltime_s: float | None = None
    #: reason for the algorithm of the search, if `auto` has chosen it; else empty
    hyper_opt_because: str = ""

    @property
    def names_objective(self) -> bool:
        """True if a trial is a command, or a call of an objective, as far as the text of the module tells."""
        return self.command is not None or names_objective(self.model)

    @property
    def of_teams(self) -> TeamOptions:
        """Options by which ranks are dealt out within every team."""
        return {
            "n_masters": self.n_masters,
            "ranks_per_worker": self.n_processes,
            "every_rank_trains": self.training.rule.averages_every_batch,
        }


def optimization_options(given: Mapping[str, object], command_line: Sequence[str] = ()) -> Options:
    """Return the options of OptimizationDriver.

    Args:
        given: option names with underscores -> text, or values in Python; None stands for the default.
        command_line: what was typed, for the journal.

    Raises:
        ConfigurationError: a value is wrong, or options contradict each other.
    """
    values = read(given, OPTIMIZATION_OPTIONS)
    if values.hyper_opt == "grid" and given.get("num_iterations") is None:
        values.num_iterations = 0  # until the space, and so the size of its grid, is known
    because = ""
    if values.hyper_opt == AUTO and given.get("pruner") == "none":
        values.hyper_opt, because = BY_NAME["hyper_opt"].default, "`--pruner none` is given"
    model = values.model or values.example
    comparison = _comparison(values)
    values.command = command = _command(values, comparison)
    objective = objective_in(model) if model else None
    is_for_one = command is not None or (objective is not None and not text_takes(objective, "comm"))
    if given.get("block_size") is None and is_for_one:
        values.block_size = 1  # every rank of a block would compute the same
    made: dict[str, Any] = {
        "direction": comparison.objectives[0].direction,
        "objectives": comparison.several,
        "budget": Budget(
            timeout_s=values.timeout,
            n_without_improvement=values.stop_after_no_improvement,
            n_alike_failures=values.max_failures,
            trial_timeout_s=values.trial_timeout,
        ),
        "pruning": pruning_plan(values, comparison),
    }
    plan = SearchPlan(**_same_named(SearchPlan, values) | made)
    if values.fold_racing:
        _check_fold_racing(values, comparison)
    search = SearchOptions(
        algorithm=values.hyper_opt,
        surrogate=values.surrogate,
        acquisition=values.acquisition,
        population=values.ga_populations,
        grid_points=values.grid_points,
        start_points=tuple(values.start_point),
        warm_start=tuple(map(_earlier, values.warm_start)),
    )
    return Options(
        **_common(values, model, command_line),
        run=_run_request(values, values.checkpoint, restore=values.opt_restore, n_asked=values.num_iterations),
        search=search,
        plan=plan,
        comparison=comparison,
        custom_pruner=values.pruner if is_custom(values.pruner) else None,
        walltime_s=values.walltime,
        hyper_opt_because=because,
    )


def training_options(given: Mapping[str, object], command_line: Sequence[str] = ()) -> Options:
    """Return the options of TrainingDriver; `given`, `command_line` and errors as of `optimization_options`."""
    values = read(given, TRAINING_OPTIONS)
    return Options(
        **_common(values, values.model, command_line),
        run=_run_request(
            values,
            values.restore or values.checkpoint,
            restore=values.restore is not None,
            restore_option="--restore",
            n_asked=values.epochs,
            unit="epoch",
            # A training may be given more epochs, and another target.
            may_change=frozenset({"checkpoint_interval", "epochs", "target_metric"}),
        ),
        plan=SearchPlan(num_iterations=1, max_attempts=values.max_attempts),
    )


def _common(values: SimpleNamespace, model: str | None, command_line: Sequence[str]) -> dict[str, Any]:
    """Return the fields of `Options` that are made alike in both drivers."""
    if not model and not getattr(values, "command", None):
        raise ConfigurationError(
            "`--model` must name what to train: a file.py, a builtin (mnist, cifar10, topclass, …) or a saved model. "
            "Received: nothing."
        )
    known = TrainingOptions().to_json()
    training = {name: value for name, value in vars(values).items() if name in known}
    log_level = "debug" if values.verbose else values.log_level
    return _same_named(Options, values) | {
        "model": model or "",
        "training": TrainingOptions.of(training | {"shuffle": not values.no_shuffle, "rules": rules_with(values.mode)}),
        "data": _data(values),
        "trial_name": values.trial_name or TRIAL_NAME,
        "gpus": GpuRequest(max_gpus=values.max_gpus, master_gpu=values.master_gpu),
        "grace_s": values.grace,
        "hang_timeout_s": values.hang_timeout,
        "remarks": (_THREAD_VALIDATION,) if values.thread_validation else (),
        "log_level": log_level,
        "quiet": values.quiet or log_level in QUIET_LEVELS,
        "log_file": _path(values.log_file),
        "mirror": tuple(dict.fromkeys(values.mirror)),
        "command_line": tuple(command_line),
    }


def _same_named(kind: type[Any], values: SimpleNamespace) -> dict[str, Any]:
    """Return the values of the options that have the name of a field of `kind`."""
    return {f.name: getattr(values, f.name) for f in fields(kind) if hasattr(values, f.name)}


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _data(values: SimpleNamespace) -> DataOptions:
    cache = values.cache_data or os.environ.get("DATA_CACHE")
    if values.copy_command is not None and not cache:
        raise ConfigurationError(
            "`--copy-command` copies to the folder of `--cache-data`. Received: the command without a folder; give "
            "both, or neither."
        )
    command = None
    if cache and (text := values.copy_command or os.environ.get("DATA_COPY_COMMAND")):
        command = parse_copy_command(text, "--copy-command" if values.copy_command else "DATA_COPY_COMMAND")
    made: dict[str, Any] = {
        "train_data": _path(values.train_data),
        "val_data": _path(values.val_data),
        "test_data": _path(values.test_data),
        "cache": _path(cache),
        "copy_command": command,
        "memory_bytes": None if values.memory_limit is None else values.memory_limit << 20,
        "n_ahead": values.preload_data,
    }
    return DataOptions(**_same_named(DataOptions, values) | made)


def _earlier(place: str | Earlier) -> Path | str | Earlier:
    """Return where the measurements of an earlier search are; a run may be given by its name."""
    if isinstance(place, Earlier) or "://" in place:
        return place
    return existing_run(place)


def _run_request(values: SimpleNamespace, checkpoint: str | None, **rest: Any) -> RunRequest:
    """Return the run to begin or resume; `checkpoint` is its name or a path, None for the name `--trial-name`."""
    root, name = Path(RUNS), checkpoint or values.trial_name
    if checkpoint and Path(checkpoint).name != checkpoint:
        root, name = Path(checkpoint).parent, Path(checkpoint).name
    return RunRequest(root=root, name=name, overwrite=values.overwrite, **rest)


def _comparison(values: SimpleNamespace) -> Comparison:
    given = tuple(values.objective)
    if given and values.direction is not None:
        raise ConfigurationError(
            f"`--direction` must be left out with `--objective`, which has its own. Received: {values.direction} "
            f"and {', '.join(map(str, given))}."
        )
    if len(given) > 1 and values.target_objective is not None:
        raise ConfigurationError(
            "`--target-objective` is for one objective: no single number can end a search for a Pareto set. Received: "
            f"{values.target_objective:g} with {len(given)} objectives; take `--stop-after-no-improvement` or "
            "`--timeout`."
        )
    objectives = given or (Objective(FIGURE, values.direction or "min"),)
    others = {"epoch": values.objective_epoch, "function": values.figure_of_merit}
    return Comparison(objectives=objectives, constraints=tuple(values.outcome_constraint), **others)


def _command(values: SimpleNamespace, comparison: Comparison) -> Command | None:
    """Return the command that is to be searched; None if there is none."""
    patterns, model = (values.report_pattern, values.result_pattern), values.model or values.example
    others = {name: getattr(values, name) for name in _OF_COMMAND if getattr(values, name) not in (None, ())}
    if values.command is None and not others:
        return None
    if values.command is None or model:
        lone = f"`{BY_NAME[next(iter(others))].flag}` and no `--command`" if values.command is None else ""
        raise ConfigurationError(
            "A search is of a model or of a command, and patterns and folders are those of a command. Received: "
            f"{lone or f'both `--command` and {model!r}'}; leave it out."
        )
    if values.command_own and values.command_folder == "here":
        raise ConfigurationError(
            "`--command-own` names what every trial has in a folder of its own. Received: "
            f"{shlex.join(values.command_own)} with `--command-folder here`, where all trials start in one folder; "
            "leave one of them out."
        )
    return Command(
        template=Template(values.command),
        names=_printed_names(comparison),
        patterns=patterns,
        folder=values.command_folder,
        own=tuple(dict.fromkeys(values.command_own)),
    )


def _printed_names(comparison: Comparison) -> tuple[str, ...]:
    """Return the names of objectives that a script has to print."""
    return tuple(objective.name for objective in comparison.objectives if objective.name not in (FIGURE, *MEASURED))


def output_options(given: Mapping[str, object]) -> tuple[Output, Comparison, Path]:
    """Return what `--try-output` asks for: a reader of the output, how trials are compared, and the file."""
    values = read(given, OPTIMIZATION_OPTIONS)
    comparison = _comparison(values)
    patterns = (values.report_pattern, values.result_pattern)
    return Output(_printed_names(comparison), patterns), comparison, Path(values.try_output)


def pruning_plan(values: SimpleNamespace, comparison: Comparison) -> PruningPlan | None:
    """Return the plan of `--pruner`, as far as it is known without the model; None without a pruner.

    `auto` without a pruner has the plan of freeze-thaw until it is known what the trials can do.
    """
    plan, is_chosen = PruningPlan(name=custom_name(values.pruner)), values.hyper_opt == AUTO
    if values.hyper_opt == FREEZE_THAW or (is_chosen and plan.name == "none"):
        if plan.name != "none":
            raise ConfigurationError(
                f"`--hyper-opt {FREEZE_THAW}` says itself which trials go on. Received: {plan.shown} beside it; leave "
                "out one of them."
            )
        plan = PruningPlan(name=FREEZE_THAW, min_epochs=0)
    options = {option: getattr(values, f"pruner_{option}") for option in _PRUNER_TAKES}
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if plan.name not in _PRUNER_TAKES[option]:
            takers = " or ".join(PruningPlan(name=name).shown for name in _PRUNER_TAKES[option])
            raise ConfigurationError(
                f"`--pruner-{option.replace('_', '-')}` is for {takers}. Received: "
                f"{f'`--hyper-opt {AUTO}`' if is_chosen and plan.name == FREEZE_THAW else plan.shown}; leave it out."
            )
    if plan.name == "none":
        return None
    if plan.name != FREEZE_THAW or not is_chosen:
        _check_one(plan.option, comparison)
    return replace(plan, **given)


def _check_fold_racing(values: SimpleNamespace, comparison: Comparison) -> None:
    _check_one("--fold-racing", comparison)
    if values.n_fold <= MIN_FOLDS:
        raise ConfigurationError(
            f"`--fold-racing` looks at a trial after {MIN_FOLDS} folds, so `--n-fold` must be at least "
            f"{MIN_FOLDS + 1}. Received: {values.n_fold}."
        )


def _check_one(option: str, comparison: Comparison) -> None:
    if comparison.several:
        raise ConfigurationError(
            f"`{option}` stops trials by one objective, and the worst in that may be the best in another. Received: "
            f"{len(comparison.several)} objectives. Drop `{option}`, or keep one `--objective`."
        )


def pruning_for(plan: PruningPlan, comparison: Comparison, epochs: int, findings: Findings) -> PruningPlan:
    """Return the plan for this model or objective; ConfigurationError if its epochs cannot be compared."""
    is_objective = findings.is_objective
    if not comparison.is_of_epochs:
        what = comparison.function or comparison.objectives[0].name
        raise ConfigurationError(
            f"`{plan.option}` needs a figure of merit that is measured after every epoch. Received: {plan.shown} with "
            f"{what}; compare trials by a metric (`--objective val_loss:min`), or leave it out."
        )
    if findings.figure == "loss" and comparison.objectives == (DEFAULT,):
        raise ConfigurationError(
            f"`{plan.option}` compares the validation of trials after each epoch. Received: {plan.shown} without "
            "validation data; give `--val-data`, or leave it out."
        )
    if not is_objective and "train.epochs" not in findings.search_space.names:
        plan = replace(plan, max_epochs=plan.max_epochs or epochs)
    if plan.is_own:  # it may end trials, but not pause them
        return replace(plan, pauses=False)
    if plan.name in ("hyperband", FREEZE_THAW) and plan.max_epochs is None:
        raise ConfigurationError(
            f"{plan.shown} must know the epochs of a whole training. Received: "
            f"{'an objective' if is_objective else 'a search space with train.epochs'}; give `--pruner-max-epochs`."
        )
    check_rungs(plan)
    return replace(plan, pauses=findings.pauses)


def check_rungs(plan: PruningPlan) -> None:
    """Raise ConfigurationError if a training has too few epochs for a pruner of ours to give up a trial."""
    halves = plan.name in ("asha", "hyperband")
    least = plan.min_epochs * plan.eta if halves else plan.min_epochs + 1
    if plan.max_epochs is not None and plan.max_epochs < least:
        raise ConfigurationError(
            f"{plan.shown} needs {least} epochs at least to give up a trial before its last one. Received: "
            f"{plan.max_epochs}; raise `--epochs`, or lower `--pruner-min-epochs`{' or `--pruner-eta`' * halves}."
        )


def check_training(options: TrainingOptions) -> tuple[EarlyStopping | None, TargetMetric | None]:
    """Raise ConfigurationError for options that are wrong for any model; return the rules for ending a training."""
    make_optimizer(options.optimizer, 1, options.learning_rate, options.optimizer_params)
    check_halves(options)
    if options.loss:
        for name in map(str.strip, options.loss.split(",")):
            try:
                torch_losses.check_loss(name)
            except ConfigurationError:  # the framework may not be known yet
                losses.check_loss(name)
    return options.stopping, options.target


def check_objectives(comparison: Comparison, metrics: tuple[str, ...]) -> None:
    """Raise ConfigurationError for an objective or a constraint of what a fold with these metrics does not have."""
    for part in comparison.needed:
        if part.name not in metrics and part.name not in MEASURED:
            raise ConfigurationError(
                "`--objective` and `--outcome-constraint` must name one of "
                f"{', '.join((*metrics, *MEASURED))}. Received: {part.name!r}."
            )


def budget_text(budget: Budget, walltime_s: float | None) -> str:
    """Return the limits of time and patience in words; empty if there are none."""
    limits = (
        ("{:g} s of searching", budget.timeout_s),
        ("{:g} s of walltime", walltime_s),
        ("{} trials without improvement", budget.n_without_improvement),
    )
    return ", or ".join(text.format(limit) for text, limit in limits if limit is not None)
