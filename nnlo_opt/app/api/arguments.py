"""Keyword arguments of a search from Python: the options of OptimizationDriver under their names, with types.

`help(nnlo_opt.optimize)` describes them, and the page Options of the reference, which also has their defaults.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypedDict

from nnlo_opt.app.api.run import Results
from nnlo_opt.core.search.base import SearchAlgorithm
from nnlo_opt.core.search.pruning import Pruner

Path: TypeAlias = str | os.PathLike[str]


class Frame(Protocol):
    """Data frame, of pandas for example."""

    def to_csv(self, *, index: bool) -> str: ...


#: earlier search: its run, result or table
Earlier: TypeAlias = Path | Results | Frame
# fmt: off
Name: TypeAlias = Literal[
    "auto", "bayesian", "freeze-thaw", "bayesian-skopt", "genetic", "random", "sobol", "tpe", "gp", "cmaes", "grid"
]
# fmt: on


class SearchArguments(TypedDict, total=False):
    """Options of `nnlo_opt.optimize` and `nnlo_opt.Study`."""

    # model and data
    train_data: Path | None
    val_data: Path | None
    features_name: str | None
    labels_name: str | None
    loss: str | None
    backend: Literal["keras", "torch"] | str | None
    keras_backend: Literal["tensorflow", "jax", "torch"] | None
    # reading and weighting samples
    class_weights: Mapping[int, float] | Literal["balanced"] | None
    sample_weights_name: str | None
    memory_limit: int | None
    preload_data: int
    verify_data: bool
    external_data: bool
    cache_data: Path | None
    copy_command: str | None
    # training
    batch: int
    epochs: int
    mode: Literal["downpour", "easgd", "gem", "allreduce"] | str
    synchronous: bool
    sync_every: int
    optimizer: str
    learning_rate: float | None
    optimizer_params: Mapping[str, Any]
    weight_decay: float | None
    no_decay: str | None
    clip_norm: float | None
    global_clip_norm: float | None
    clip_value: float | None
    ema: float | None
    warmup_epochs: float | str
    lr_schedule: str
    early_stopping: str | None
    target_metric: str | None
    n_processes: int
    n_masters: int
    exchange: str
    overlap: bool | None
    staleness: str
    momentum_correction: bool
    worker_optimizer: str | None
    worker_optimizer_params: Mapping[str, Any]
    elastic_force: float
    elastic_lr: float | None
    elastic_momentum: float
    gem_lr: float
    gem_momentum: float
    gem_kappa: float
    shuffle: bool
    # run
    checkpoint: Path | None
    trial_name: str | None
    checkpoint_interval: int
    max_attempts: int
    overwrite: bool
    seed: int
    # devices and monitoring
    max_gpus: int | None
    master_gpu: bool
    monitor: bool
    # search
    fix: Mapping[str, Any]
    hyper_opt: Name | str | SearchAlgorithm | type[SearchAlgorithm]
    surrogate: Literal["gp", "et", "rf", "gbrt"] | None
    acquisition: Literal["ei", "lcb", "pi"] | None
    ga_populations: int | None
    grid_points: int | None
    start_point: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]]
    warm_start: Earlier | Sequence[Earlier]
    block_size: int
    n_fold: int
    fold_by: str
    opt_restore: bool
    # stopping trials early
    pruner: Literal["none", "median", "asha", "hyperband"] | str | Pruner | type[Pruner]
    pruner_eta: int | None
    pruner_min_epochs: int | None
    pruner_min_trials: int | None
    pruner_max_epochs: int | None
    fold_racing: bool
    # comparing trials
    objective: str | Sequence[str] | Mapping[str, str]
    outcome_constraint: str | Sequence[str]
    figure_of_merit: str | None
    objective_epoch: Literal["last", "best"]
    direction: Literal["min", "max", "minimize", "maximize"] | None
    # when a search stops
    num_iterations: int
    timeout: float | str | None
    walltime: float | str | None
    trial_timeout: float | str | None
    stop_after_no_improvement: int | None
    max_failures: int
    target_objective: float | None
