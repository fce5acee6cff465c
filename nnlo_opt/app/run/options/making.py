"""Creates the options of each driver from the given values."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from nnlo_opt.app.run.options.comparing import command_of, comparison_of
from nnlo_opt.app.run.options.pruning import check_fold_racing, pruning_plan
from nnlo_opt.app.run.options.table import (
    BY_NAME,
    OPTIMIZATION_OPTIONS,
    QUIET_LEVELS,
    TRAINING_OPTIONS,
    TRIAL_NAME,
    read,
)
from nnlo_opt.app.run.options.values import DataOptions, Options, SearchOptions
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.coordinator.instructions import Budget, SearchPlan
from nnlo_opt.core.search.warm_start import Earlier
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.trials.run_directory import RUNS, RunRequest, existing_run
from nnlo_opt.engine.data.cache import parse_copy_command
from nnlo_opt.engine.models.builders import objective_in
from nnlo_opt.engine.objective.signature import text_takes
from nnlo_opt.engine.runtime.devices import GpuRequest
from nnlo_opt.engine.search.custom import is_custom, rules_with
from nnlo_opt.engine.search.registry import AUTO

_THREAD_VALIDATION = (
    "`--thread-validation` changes nothing here: validation is shared by the workers and never keeps a master busy."
)


def optimization_options(given: Mapping[str, object], command_line: Sequence[str] = ()) -> Options:
    """Return the options of OptimizationDriver.

    Args:
        given: option name with underscores -> text or Python value; None for the default.
        command_line: command line as typed, for the journal.

    Raises:
        ConfigurationError: a value is invalid, or options contradict each other.
    """
    values = read(given, OPTIMIZATION_OPTIONS)
    if values.hyper_opt == "grid" and given.get("num_iterations") is None:
        values.num_iterations = 0  # until the size of the grid is known
    because = ""
    if values.hyper_opt == AUTO and given.get("pruner") == "none":
        values.hyper_opt, because = BY_NAME["hyper_opt"].default, f"`{spelled('pruner', 'none')}` is given"
    model = values.model or values.example
    comparison = comparison_of(values)
    command = command_of(values, comparison)
    objective = objective_in(model) if model else None
    is_for_one = command is not None or (objective is not None and not text_takes(objective, "comm"))
    if given.get("block_size") is None and is_for_one:
        values.block_size = 1  # all ranks of a block would compute the same
    plan = SearchPlan(
        num_iterations=values.num_iterations,
        n_fold=values.n_fold,
        direction=comparison.objectives[0].direction,
        target_objective=values.target_objective,
        objectives=comparison.several,
        budget=Budget(
            timeout_s=values.timeout,
            n_without_improvement=values.stop_after_no_improvement,
            n_alike_failures=values.max_failures,
            trial_timeout_s=values.trial_timeout,
        ),
        max_attempts=values.max_attempts,
        pruning=pruning_plan(values, comparison),
        fold_racing=values.fold_racing,
    )
    if values.fold_racing:
        check_fold_racing(values, comparison)
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
        **_common(values, model, given, command_line),
        run=_search_run(values),
        join_s=values.join,
        block_size=values.block_size,
        search=search,
        search_space=values.search_space,
        command=command,
        fix=values.fix,
        keep_weights=values.keep_weights,
        plan=plan,
        comparison=comparison,
        custom_pruner=values.pruner if is_custom(values.pruner) else None,
        walltime_s=values.walltime,
        hyper_opt_because=because,
    )


def training_options(given: Mapping[str, object], command_line: Sequence[str] = ()) -> Options:
    """Return the options of TrainingDriver; `given`, `command_line` and errors as for `optimization_options`."""
    values = read(given, TRAINING_OPTIONS)
    return Options(
        **_common(values, values.model, given, command_line),
        run=_run_request(
            values,
            values.restore or values.checkpoint,
            restore=values.restore is not None,
            restore_option="--restore",
            n_asked=values.epochs,
            unit="epoch",
            # A resumed training may get more epochs and another target.
            may_change=frozenset({"checkpoint_interval", "epochs", "target_metric"}),
        ),
        plan=SearchPlan(num_iterations=1, max_attempts=values.max_attempts),
    )


def _common(
    values: SimpleNamespace, model: str | None, given: Mapping[str, object], command_line: Sequence[str]
) -> dict[str, Any]:
    """Return the fields of `Options` that both drivers have in common."""
    if not model and not getattr(values, "command", None):
        raise ConfigurationError(
            "`--model` must name a model: a file.py, a builtin (mnist, cifar10, topclass, …) or a saved model. "
            "Received: nothing."
        )
    known = TrainingOptions().to_json()
    training = {name: value for name, value in vars(values).items() if name in known}
    training["given"] = frozenset(name for name, value in given.items() if name in known and value is not None)
    log_level = "debug" if values.verbose else values.log_level
    return {
        "model": model or "",
        "backend": values.backend,
        "keras_backend": values.keras_backend,
        "fresh_weights": values.fresh_weights,
        "n_processes": values.n_processes,
        "n_masters": values.n_masters,
        "seed": values.seed,
        "monitor": values.monitor,
        "timeline": values.timeline,
        "on_end": values.on_end,
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


def _path(text: str | None) -> Path | None:
    return Path(text) if text else None


def _data(values: SimpleNamespace) -> DataOptions:
    cache = values.cache_data or os.environ.get("DATA_CACHE")
    if values.copy_command is not None and not cache:
        raise ConfigurationError(
            f"`{spelled('copy_command')}` copies to the folder of `{spelled('cache_data')}`. Received: the command "
            "without a folder; give both, or neither."
        )
    command = None
    if cache and (text := values.copy_command or os.environ.get("DATA_COPY_COMMAND")):
        command = parse_copy_command(text, "" if values.copy_command else "DATA_COPY_COMMAND")
    return DataOptions(
        train_data=_path(values.train_data),
        val_data=_path(values.val_data),
        test_data=_path(values.test_data),
        features_name=values.features_name,
        labels_name=values.labels_name,
        fold_by=getattr(values, "fold_by", BY_NAME["fold_by"].default),  # a training has no folds
        verify_data=values.verify_data,
        external_data=values.external_data,
        cache=_path(cache),
        copy_command=command,
        memory_bytes=None if values.memory_limit is None else values.memory_limit << 20,
        n_ahead=values.preload_data,
        class_weights=values.class_weights,
        sample_weights_name=values.sample_weights_name,
    )


def _earlier(place: str | Earlier) -> Path | str | Earlier:
    """Return the location of an earlier search; a run may be given by name."""
    if isinstance(place, Earlier) or "://" in place:
        return place
    return existing_run(place)


def _search_run(values: SimpleNamespace) -> RunRequest:
    """Return the request for the run of a search."""
    if values.join is None:
        return _run_request(values, values.checkpoint, restore=values.opt_restore, n_asked=values.num_iterations)
    if values.overwrite:
        raise ConfigurationError(
            f"`{spelled('overwrite', True)}` replaces a run, on which other jobs of `--join` may be working. Received: "
            f"both. Remove the folder of the run first, or choose another name by `{spelled('checkpoint', 'NAME')}`."
        )
    if not (values.checkpoint or values.trial_name):
        raise ConfigurationError(
            "`--join` shares one run with other jobs, which must all name it. Received: no name. Give "
            f"`{spelled('checkpoint', 'NAME')}`."
        )
    return _run_request(values, values.checkpoint, restore=True, restore_option="--join", n_asked=values.num_iterations)


def _run_request(values: SimpleNamespace, checkpoint: str | None, **rest: Any) -> RunRequest:
    """Return the request for a run; `checkpoint`: name or path; None to use `--trial-name`."""
    root, name = Path(RUNS), checkpoint or values.trial_name
    if checkpoint and Path(checkpoint).name != checkpoint:
        root, name = Path(checkpoint).parent, Path(checkpoint).name
    return RunRequest(root=root, name=name, overwrite=values.overwrite, **rest)
