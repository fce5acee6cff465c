"""The command line as frozen values; the parsers themselves are in `cli.parsers`."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nnlo_opt.cli.comparing import budget_of, comparison_of
from nnlo_opt.cli.data_options import DataOptions, data_options_of
from nnlo_opt.cli.parsers import optimization_parser, training_parser
from nnlo_opt.cli.pruning import fold_racing_of, pruning_of
from nnlo_opt.cli.run_options import run_request_of
from nnlo_opt.cli.search_options import SearchOptions, fixed_values, search_options_of
from nnlo_opt.cli.training_options import training_options_of
from nnlo_opt.coordinator.instructions import SearchPlan
from nnlo_opt.errors import ConfigurationError
from nnlo_opt.runtime.devices import GpuRequest
from nnlo_opt.training.options import TrainingOptions
from nnlo_opt.trials.objectives import Comparison
from nnlo_opt.trials.run_directory import RunRequest

_THREAD_VALIDATION = (
    "`--thread-validation` changes nothing here: validation is shared by the workers and never keeps a master busy."
)
BACKENDS = ("keras", "torch")
KERAS_BACKENDS = ("tensorflow", "jax", "torch")


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
    #: seconds in which a rank must have got something done, else it is ended; 0: it is not watched
    hang_timeout_s: float = 600.0
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
    search: SearchOptions = SearchOptions()  # noqa: RUF009  (frozen)
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
        max_attempts=arguments.max_attempts,
    )
    return _options(
        arguments,
        argv,
        model=model,
        run=run_request_of(arguments, restore=arguments.opt_restore),
        block_size=arguments.block_size,
        search=search_options_of(arguments),
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
        arguments,
        argv,
        model=arguments.model,
        run=run_request_of(arguments, restore=arguments.restore is not None),
        plan=SearchPlan(num_iterations=1, max_attempts=arguments.max_attempts),
    )


def normalise(argv: Sequence[str]) -> list[str]:
    """`--train_data=x` as `--train-data=x`: the reference wrote some options with underscores."""

    def dashed(argument: str) -> str:
        name, equals, value = argument.partition("=")
        return name.replace("_", "-") + equals + value

    return [dashed(argument) if argument.startswith("--") else argument for argument in argv]


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
        data=data_options_of(arguments),
        training=training_options_of(arguments),
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
        hang_timeout_s=arguments.hang_timeout,
        remarks=(_THREAD_VALIDATION,) if arguments.thread_validation else (),
        log_level="debug" if arguments.verbose else arguments.log_level,
        log_file=Path(arguments.log_file) if arguments.log_file else None,
        command_line=tuple(argv),
        **rest,
    )
