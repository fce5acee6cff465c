"""The command line as frozen values; the parsers themselves are in `cli.parsers`."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnlo_opt.cli.comparing import budget_of, comparison_of
from nnlo_opt.cli.data_options import data_options_of
from nnlo_opt.cli.parsers import optimization_parser, training_parser
from nnlo_opt.cli.pruning import fold_racing_of, pruning_of
from nnlo_opt.cli.run_options import run_request_of
from nnlo_opt.cli.search_options import fixed_values, search_options_of
from nnlo_opt.cli.training_options import training_options_of
from nnlo_opt.coordinator.instructions import SearchPlan
from nnlo_opt.errors import ConfigurationError
from nnlo_opt.run.options import Options
from nnlo_opt.runtime.devices import GpuRequest

_THREAD_VALIDATION = (
    "`--thread-validation` changes nothing here: validation is shared by the workers and never keeps a master busy."
)
BACKENDS = ("keras", "torch")
KERAS_BACKENDS = ("tensorflow", "jax", "torch")


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
