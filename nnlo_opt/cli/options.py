"""The command line as frozen values; the parsers themselves are in `cli.parsers`."""

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from nnlo_opt.cli.comparing import budget_of, comparison_of
from nnlo_opt.cli.parsers import RUNS, optimization_parser, training_parser
from nnlo_opt.cli.pruning import fold_racing_of, pruning_of
from nnlo_opt.config import TrainingOptions
from nnlo_opt.coordinator.instructions import SearchPlan
from nnlo_opt.data.cache import parse_copy_command
from nnlo_opt.data.weights import ClassWeights
from nnlo_opt.devices import GpuRequest
from nnlo_opt.errors import ConfigurationError
from nnlo_opt.search.registry import ACQUISITIONS, SURROGATES, options_of, search_names
from nnlo_opt.space.space import Point
from nnlo_opt.trials.objectives import Comparison
from nnlo_opt.trials.run_directory import RunRequest

_THREAD_VALIDATION = (
    "`--thread-validation` changes nothing here: validation is shared by the workers and never keeps a master busy."
)


BACKENDS = ("keras", "torch")
KERAS_BACKENDS = ("tensorflow", "jax", "torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """Where samples come from; None: from the model module."""

    train_data: Path | None = None
    val_data: Path | None = None
    features_name: str | None = None
    labels_name: str | None = None
    #: "samples", "files", or the name of a data set whose equal values stay together
    fold_by: str = "samples"
    #: compare the data files with the checksums beside their lists before anything trains
    verify_data: bool = False
    #: folder for copies of data files; None: they are read where they are
    cache: Path | None = None
    #: words of the command that copies, two with `{}`; None: we copy
    copy_command: tuple[str, ...] | None = None
    #: bytes of samples that a rank may hold; None: a quarter of the node's free memory, divided among its ranks
    memory_bytes: int | None = None
    #: windows of samples read ahead where they are not held in memory
    n_ahead: int = 1
    class_weights: ClassWeights | None = None
    #: data set with a weight for each sample
    sample_weights_name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """How points are found; None: as the algorithm has it."""

    algorithm: str = "bayesian"
    surrogate: str | None = None
    acquisition: str | None = None
    #: --ga-populations
    population: int | None = None
    #: points to be tried first
    start_points: tuple[Point, ...] = ()
    #: run directories whose trials the search begins with
    warm_start: tuple[Path, ...] = ()

    def __post_init__(self) -> None:
        if self.algorithm not in search_names():
            raise ConfigurationError(
                f"`--hyper-opt` must be one of {', '.join(search_names())}. Received: {self.algorithm}; choose one."
            )
        for name, option in SEARCH_OPTIONS.items():
            if getattr(self, name) is not None and name not in options_of(self.algorithm):
                owner = next(owner for owner in search_names() if name in options_of(owner))
                raise ConfigurationError(
                    f"`{option}` is an option of `--hyper-opt {owner}`. Received: it with {self.algorithm}; leave it "
                    f"out, or choose {owner}."
                )
        for name, choices in (("surrogate", SURROGATES), ("acquisition", ACQUISITIONS)):
            if getattr(self, name) not in (None, *choices):
                raise ConfigurationError(
                    f"`--{name}` must be one of {', '.join(choices)}. Received: {getattr(self, name)}; choose one."
                )
        if self.population == 1:
            raise ConfigurationError(
                "`--ga-populations` must be at least 2, as a child has two parents. Received: 1; leave it out for 10."
            )

    def given(self) -> dict[str, Any]:
        """The options of the algorithm that were given, by the names that `make_search` has for them."""
        return {name: value for name in SEARCH_OPTIONS if (value := getattr(self, name)) is not None}

    def to_json(self) -> dict[str, Any]:
        """What was given besides the algorithm, as plain data."""
        return {**self.given(), "start_points": list(self.start_points)}


#: options that belong to some search algorithms: what `make_search` calls them, and what the command line does
SEARCH_OPTIONS = {"surrogate": "--surrogate", "acquisition": "--acquisition", "population": "--ga-populations"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Everything a driver was asked for."""

    model: str
    data: DataOptions
    training: TrainingOptions
    run: RunRequest
    #: name for history files
    trial_name: str
    seed: int
    log_level: str
    log_file: Path | None
    command_line: tuple[str, ...]
    gpus: GpuRequest = GpuRequest()  # noqa: RUF009  (frozen)
    #: measure what each worker takes of its machine
    monitor: bool = False
    #: write what every rank did when
    timeline: bool = False
    #: seconds to end in after SIGUSR1
    grace_s: float = 60.0
    #: what to say about options that were given
    remarks: tuple[str, ...] = ()
    #: what the model is made with; None: as its module tells
    backend: str | None = None
    #: what Keras computes with; None: as the environment says
    keras_backend: str | None = None
    #: ranks of a worker
    n_processes: int = 1
    #: masters of a block: the top one and its sub-masters
    n_masters: int = 1
    #: the rest belongs to OptimizationDriver
    block_size: int = 1
    search: SearchOptions = SearchOptions()
    search_space: str | None = None
    #: values of parameters that are not to vary, by name, as they were written
    fix: Mapping[str, str] = field(default_factory=dict)
    plan: SearchPlan = field(default_factory=lambda: SearchPlan(num_iterations=1))
    comparison: Comparison = Comparison()  # noqa: RUF009  (frozen)
    #: seconds that this start may take; None: any
    walltime_s: float | None = None


def parse_optimization(argv: Sequence[str]) -> Options:
    """Options of OptimizationDriver; ConfigurationError or HelpRequested."""
    arguments = optimization_parser().parse_args(normalise(argv))
    model = arguments.model or arguments.example
    search = SearchOptions(
        algorithm=arguments.hyper_opt,
        surrogate=arguments.surrogate,
        acquisition=arguments.acquisition,
        population=arguments.ga_populations,
        start_points=tuple(arguments.start_point),
        warm_start=tuple(Path(path) for path in arguments.warm_start),
    )
    comparison = comparison_of(arguments)
    plan = SearchPlan(
        num_iterations=arguments.num_iterations,
        n_fold=arguments.n_fold,
        direction=comparison.objectives[0].direction,
        target_objective=arguments.target_objective,
        objectives=comparison.several,
        budget=budget_of(arguments),
        pruning=pruning_of(arguments, comparison),
        fold_racing=fold_racing_of(arguments, comparison),
    )
    return _options(
        arguments,
        argv,
        model=model,
        run=_run_request(arguments, restore=arguments.opt_restore),
        block_size=arguments.block_size,
        search=search,
        search_space=arguments.search_space,
        fix=fixed_values(arguments.fix),
        plan=plan,
        comparison=comparison,
        walltime_s=arguments.walltime,
    )


def parse_training(argv: Sequence[str]) -> Options:
    """Options of TrainingDriver; ConfigurationError or HelpRequested."""
    arguments = training_parser().parse_args(normalise(argv))
    if arguments.restore:
        arguments.checkpoint = arguments.restore
    return _options(
        arguments, argv, model=arguments.model, run=_run_request(arguments, restore=arguments.restore is not None)
    )


def normalise(argv: Sequence[str]) -> list[str]:
    """`--train_data=x` as `--train-data=x`: the reference wrote some options with underscores."""

    def dashed(argument: str) -> str:
        name, equals, value = argument.partition("=")
        return name.replace("_", "-") + equals + value

    return [dashed(argument) if argument.startswith("--") else argument for argument in argv]


def fixed_values(given: Sequence[str]) -> dict[str, str]:
    """What `--fix NAME=VALUE` was given with, by name; ConfigurationError for one without `=`, or given twice."""
    fixed: dict[str, str] = {}
    for text in given:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not name or not equals:
            raise ConfigurationError(
                f"`--fix` must be given as NAME=VALUE. Received: {text!r}. Write it as `--fix dropout=0.5`."
            )
        if name in fixed:
            raise ConfigurationError(
                f"`--fix` must give a parameter one value. Received: {fixed[name]!r} and {value!r} for {name!r}. "
                "Leave one of them out."
            )
        fixed[name] = value
    return fixed


def _run_request(arguments: argparse.Namespace, restore: bool) -> RunRequest:
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


def _data_options(arguments: argparse.Namespace) -> DataOptions:
    cache = arguments.cache_data or os.environ.get("DATA_CACHE")
    if arguments.copy_command is not None and not cache:
        raise ConfigurationError(
            "`--copy-command` copies to the folder of `--cache-data`. Received: the command without a folder; give "
            "both, or neither."
        )
    command = None
    if cache and (text := arguments.copy_command or os.environ.get("DATA_COPY_COMMAND")):
        command = parse_copy_command(text, "--copy-command" if arguments.copy_command else "DATA_COPY_COMMAND")
    return DataOptions(
        train_data=Path(arguments.train_data) if arguments.train_data else None,
        val_data=Path(arguments.val_data) if arguments.val_data else None,
        features_name=arguments.features_name,
        labels_name=arguments.labels_name,
        fold_by=getattr(arguments, "fold_by", "samples"),
        verify_data=arguments.verify_data,
        cache=Path(cache) if cache else None,
        copy_command=command,
        memory_bytes=None if arguments.memory_limit is None else arguments.memory_limit << 20,
        n_ahead=arguments.preload_data,
        class_weights=arguments.class_weights,
        sample_weights_name=arguments.sample_weights_name,
    )


def _options(arguments: argparse.Namespace, argv: Sequence[str], *, model: str | None, **rest: Any) -> Options:
    if not model:
        raise ConfigurationError(
            "`--model` must name what to train: a file.py, a builtin (mnist, cifar10) or an arch.json. "
            "Received: nothing."
        )
    for option, given, known in (
        ("--backend", arguments.backend, BACKENDS),
        ("--keras-backend", arguments.keras_backend, KERAS_BACKENDS),
    ):
        if given not in (None, *known):
            raise ConfigurationError(f"`{option}` must be one of {', '.join(known)}. Received: {given}.")
    return Options(
        model=model,
        data=_data_options(arguments),
        training=TrainingOptions(
            shuffle=not arguments.no_shuffle,
            **{f.name: getattr(arguments, f.name) for f in fields(TrainingOptions) if f.name != "shuffle"},
        ),
        trial_name=arguments.trial_name or "train",
        n_processes=arguments.n_processes,
        n_masters=arguments.n_masters,
        backend=arguments.backend,
        keras_backend=arguments.keras_backend,
        seed=arguments.seed,
        gpus=GpuRequest(max_gpus=arguments.max_gpus, master_gpu=arguments.master_gpu),
        monitor=arguments.monitor,
        timeline=arguments.timeline,
        grace_s=arguments.grace,
        remarks=(_THREAD_VALIDATION,) if arguments.thread_validation else (),
        log_level="debug" if arguments.verbose else arguments.log_level,
        log_file=Path(arguments.log_file) if arguments.log_file else None,
        command_line=tuple(argv),
        **rest,
    )
