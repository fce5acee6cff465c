"""What both managers are asked for, as one value, and the training options that follow from it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnlo_opt.algorithms.easgd import moving_rate
from nnlo_opt.api.algo import Algo
from nnlo_opt.api.data import Data
from nnlo_opt.api.model import ModelBuilder
from nnlo_opt.config import TrainingOptions
from nnlo_opt.errors import ConfigurationError


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments of a manager, which `MPIManager` describes; `n_fold` of 1 takes the lists as they are given."""

    data: Data
    algo: Algo
    model_builder: ModelBuilder
    num_epochs: int
    train_list: Iterable[str | Path]
    val_list: Iterable[str | Path]
    n_fold: int
    num_masters: int
    num_processes: int
    synchronous: bool
    verbose: bool
    custom_objects: Mapping[str, Any] | None
    early_stopping: str | None
    target_metric: str | None
    monitor: bool
    checkpoint: str | Path | None
    checkpoint_interval: int
    callbacks: Sequence[Any]
    seed: int

    def training_options(self, n_ranks: int, n_workers: int) -> TrainingOptions:
        """The options of a team of `n_ranks` with `n_workers`; ConfigurationError for what cannot be."""
        n_processes = self.num_processes
        if self.num_masters != 1:
            raise ConfigurationError(
                f"`num_masters` must be 1 from Python. Received: {self.num_masters!r}. Take `TrainingDriver`, or leave "
                "it out."
            )
        if not isinstance(n_processes, int) or n_processes < 1 or (n_processes > 1 and (n_ranks - 1) % n_processes):
            raise ConfigurationError(
                "`num_processes` must be a whole number, at least 1, that divides the ranks beside the master. "
                f"Received: {n_processes!r} with {n_ranks} ranks."
            )
        if not isinstance(self.data, Data):
            raise ConfigurationError(
                f"`data` must be of a class derived from Data. Received: {type(self.data).__name__}."
            )
        if n_processes > 1 and (self.algo.mode == "allreduce" or n_ranks == 1):
            raise ConfigurationError(
                "`num_processes` above 1 needs a master with ranks beside it. Received: "
                f"{n_processes} with {n_ranks} ranks in mode {self.algo.mode}; leave it out."
            )
        options = self.algo.options(
            n_workers=n_workers,
            batch=self.data.batch_size,
            epochs=self.num_epochs,
            synchronous=self.synchronous or None,
            early_stopping=self.early_stopping,
            target_metric=self.target_metric,
            checkpoint_interval=self.checkpoint_interval,
        )
        self.algo.check(options)
        if options.mode == "easgd":
            moving_rate(options.elastic_force, n_workers)
        return options
