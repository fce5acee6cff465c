"""The command line as frozen values; the parsers themselves are in `cli.parsers`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nnlo_opt.cli.parsers import RUNS, optimization_parser, training_parser
from nnlo_opt.config import TrainingOptions
from nnlo_opt.coordinator.instructions import SearchPlan
from nnlo_opt.errors import ConfigurationError
from nnlo_opt.search.registry import search_names
from nnlo_opt.trials.run_directory import RunRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class DataOptions:
    """Where samples come from; None: from the model module."""

    train_data: Path | None = None
    val_data: Path | None = None
    features_name: str | None = None
    labels_name: str | None = None
    #: "samples", "files", or the name of a data set whose equal values stay together
    fold_by: str = "samples"


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
    use_gpus: bool
    log_level: str
    log_file: Path | None
    command_line: tuple[str, ...]
    #: the rest belongs to OptimizationDriver
    block_size: int = 1
    hyper_opt: str = "bayesian"
    search_space: str | None = None
    plan: SearchPlan = field(default_factory=lambda: SearchPlan(num_iterations=1))


def parse_optimization(argv: Sequence[str]) -> Options:
    """Options of OptimizationDriver; ConfigurationError or HelpRequested."""
    arguments = optimization_parser().parse_args(normalise(argv))
    model = arguments.model or arguments.example
    if arguments.hyper_opt not in search_names():
        later = " (genetic is not available in this version)" if arguments.hyper_opt == "genetic" else ""
        raise ConfigurationError(
            f"`--hyper-opt` must be one of {', '.join(search_names())}. Received: {arguments.hyper_opt}{later}."
        )
    plan = SearchPlan(
        num_iterations=arguments.num_iterations,
        n_fold=arguments.n_fold,
        direction=arguments.direction or "min",
        target_objective=arguments.target_objective,
    )
    return _options(
        arguments,
        argv,
        model=model,
        run=_run_request(arguments, restore=arguments.opt_restore),
        block_size=arguments.block_size,
        hyper_opt=arguments.hyper_opt,
        search_space=arguments.search_space,
        plan=plan,
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


def _options(arguments: argparse.Namespace, argv: Sequence[str], *, model: str | None, **rest: Any) -> Options:
    if not model:
        raise ConfigurationError(
            "`--model` must name what to train: a file.py, a builtin (mnist, cifar10) or an arch.json. "
            "Received: nothing."
        )
    if arguments.backend != "keras":
        known = "is not available in this version" if arguments.backend == "torch" else "must be keras"
        raise ConfigurationError(f"`--backend` {known}. Received: {arguments.backend}; leave it out.")
    if arguments.max_gpus not in (None, "0"):
        raise ConfigurationError(
            f"`--max-gpus` other than 0 is not available in this version. Received: {arguments.max_gpus}; leave it out."
        )
    return Options(
        model=model,
        data=DataOptions(
            train_data=Path(arguments.train_data) if arguments.train_data else None,
            val_data=Path(arguments.val_data) if arguments.val_data else None,
            features_name=arguments.features_name,
            labels_name=arguments.labels_name,
            fold_by=getattr(arguments, "fold_by", "samples"),
        ),
        training=TrainingOptions(
            batch=arguments.batch,
            epochs=arguments.epochs,
            optimizer=arguments.optimizer,
            learning_rate=arguments.learning_rate,
            optimizer_params=arguments.optimizer_params,
            mode=arguments.mode,
            synchronous=arguments.synchronous,
            sync_every=arguments.sync_every,
            loss=arguments.loss,
            early_stopping=arguments.early_stopping,
            target_metric=arguments.target_metric,
            checkpoint_interval=arguments.checkpoint_interval,
            shuffle=not arguments.no_shuffle,
        ),
        trial_name=arguments.trial_name or "train",
        seed=arguments.seed,
        use_gpus=arguments.max_gpus != "0",
        log_level="debug" if arguments.verbose else arguments.log_level,
        log_file=Path(arguments.log_file) if arguments.log_file else None,
        command_line=tuple(argv),
        **rest,
    )
