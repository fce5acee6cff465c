"""Managers of a training, or of a cross validation, on the ranks of a communicator.

Every rank makes a manager, with the same arguments. On workers the constructor trains, and returns when the training
is over; on the master it returns at once, and `train` does the work. So a script may call `manager.train()` on all
ranks, or `if comm.Get_rank() == 0: manager.process.train()` as in NNLO and mpi_learn.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnlo_opt.ancestors.manager.algo import Algo
from nnlo_opt.ancestors.manager.data import Data
from nnlo_opt.ancestors.manager.model import ModelBuilder
from nnlo_opt.ancestors.manager.settings import Settings
from nnlo_opt.ancestors.manager.training import Manager
from nnlo_opt.core.base.files import atomic_write
from nnlo_opt.core.space.values import check_whole


class MPIManager(Manager):
    """Training on the ranks of `comm`: rank 0 is the master, all other ranks are workers; one rank alone is both.

    With the `Sums` of `Data` and the `Line` of `ModelBuilder`:

    >>> manager = MPIManager(None, Sums(10), Algo("sgd", loss="mse"), Line(), 2, ["1", "2"], ["3"])
    >>> manager.train()["train_time"] > 0
    True
    """

    def __init__(
        self,
        comm: Any,
        data: Data,
        algo: Algo,
        model_builder: ModelBuilder,
        num_epochs: int,
        train_list: Iterable[str | Path] | Path,
        val_list: Iterable[str | Path] | Path = (),
        num_masters: int = 1,
        num_processes: int = 1,
        synchronous: bool = False,
        verbose: bool = False,
        custom_objects: Mapping[str, Any] | None = None,
        early_stopping: str | None = None,
        target_metric: str | None = None,
        monitor: bool = False,
        thread_validation: bool = False,
        checkpoint: str | Path | None = None,
        checkpoint_interval: int = 5,
        callbacks: Sequence[Any] = (),
        seed: int = 0,
    ) -> None:
        """Make a manager; workers train here. Collective: every rank of `comm`.

        Args:
            comm: communicator of mpi4py; None for this process alone, without MPI.
            data: see `Data`.
            algo: see `Algo`.
            model_builder: see `ModelBuilder`.
            num_epochs: passes over all training samples, counted over all workers.
            train_list: file names in a list, or whatever `data` takes for them; or the path of a list file. Every rank
                must reach all files.
            val_list: the same for validation.
            num_masters: above 1, rank 0 is a top master, and each of the other masters leads a group.
            num_processes: ranks of a worker, which average their gradients.
            synchronous: True if workers wait for each other, and their gradients are averaged.
            verbose: True if rank 0 prints a line after every epoch.
            custom_objects: layers and functions of the model that are not Keras's own, by name.
            early_stopping: rule such as "val_loss,<,4".
            target_metric: rule such as "val_acc,>,0.97".
            monitor: True to measure CPU and memory of every worker, for the history.
            thread_validation: changes nothing, as validation is shared by the workers.
            checkpoint: a folder that all ranks reach. The training is saved there every `checkpoint_interval` epochs,
                and continues from the files that are there.
            checkpoint_interval: epochs between two checkpoints.
            callbacks: Keras callbacks, whose methods for batches are not called.
            seed: seed of initial weights and shuffling.

        Raises:
            ConfigurationError: the arguments are wrong, or data and model do not fit each other.
            TrialError: on a worker, which trains here, if the training has failed.
        """
        super().__init__(comm, Settings.of(locals()))

    @property
    def process(self) -> "_Process":
        """The master, as scripts of mpi_learn and NNLO call it."""
        return _Process(self)

    def train(self) -> dict[str, Any]:
        """Train, unless that is done; return {"train_time", "history", "args"} in the form of mpi_learn and NNLO.

        "history" has per rank `<world>:<parent>:<process>` one value an epoch of each metric. Every rank may call it;
        the master must. Raises `TrialError` if the training has failed.
        """
        return self._history_of(self._train()[0])

    def figure_of_merit(self) -> float:
        """Return 1 - validation accuracy of the last epoch (the best, with early stopping); else the loss."""
        return self._train()[0].figure_of_merit


class _Process:
    """Master with the methods that scripts of mpi_learn and NNLO call."""

    def __init__(self, manager: MPIManager) -> None:
        self._manager = manager

    @property
    def model(self) -> Any:
        """Trained model."""
        return self._manager.model

    @property
    def histories(self) -> dict[str, Any]:
        """Metrics of every epoch, by rank."""
        return dict(self._manager.train()["history"])

    def train(self) -> dict[str, Any]:
        """Train; return `histories`."""
        return self.histories

    def record_details(self, json_name: str | Path, meta: Mapping[str, Any] | None = None) -> None:
        """Write `json_name` with train_time, history and `meta`, and beside it the trained model."""
        details = self._manager.train() | dict(meta or {})
        atomic_write(Path(json_name), json.dumps(details, indent=1, default=str) + "\n")
        self._manager.save(Path(json_name).with_suffix(".keras"))


class MPIKFoldManager(Manager):
    """Cross validation: both lists are pooled and cut into folds; each validates what all other folds train.

    >>> manager = MPIKFoldManager(2, None, Sums(10), Algo("sgd", loss="mse"), Line(), 1, ["1", "2"])
    >>> history = manager.train()
    >>> manager.figure_of_merit() > 0
    True

    On at least two ranks a fold the ranks are divided and the folds are trained at the same time, else one after
    another. HDF5 files are cut by samples (stratified if labels are classes), generated data by files if there are
    enough, else by batches.
    """

    def __init__(
        self,
        NFolds: int,
        comm: Any,
        data: Data,
        algo: Algo,
        model_builder: ModelBuilder,
        num_epochs: int,
        train_list: Iterable[str | Path] | Path,
        val_list: Iterable[str | Path] | Path = (),
        num_masters: int = 1,
        num_process: int = 1,
        synchronous: bool = False,
        verbose: bool = False,
        custom_objects: Mapping[str, Any] | None = None,
        early_stopping: str | None = None,
        target_metric: str | None = None,
        monitor: bool = False,
        checkpoint: str | Path | None = None,
        checkpoint_interval: int = 5,
        seed: int = 0,
    ) -> None:
        """Take the arguments of `MPIManager`, and raise what it raises. Collective: every rank of `comm`."""
        check_whole("NFolds", NFolds)
        super().__init__(comm, Settings.of(locals()))

    def train(self) -> list[dict[str, Any]]:
        """Train all folds; return the history of each, as `MPIManager.train` does. Every rank calls it."""
        return [self._history_of(outcome) for outcome in self._train()]

    def figures_of_merit(self) -> list[float]:
        """Return the figure of merit of every fold."""
        return [outcome.figure_of_merit for outcome in self._train()]

    def figure_of_merit(self) -> float:
        """Return the mean over all folds."""
        return float(np.mean(self.figures_of_merit()))

    def figure_of_merit_std(self) -> float:
        """Return the standard deviation over the folds."""
        return float(np.std(self.figures_of_merit()))
