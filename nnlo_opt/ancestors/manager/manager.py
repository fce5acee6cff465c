"""Managers of a training, or of a cross validation, on the ranks of a communicator.

Every rank must construct a manager with the same arguments. On workers the constructor trains, and returns when the
training is over; on the master it returns at once, and `train` does the work. So a script may call `manager.train()` on
all ranks, or `if comm.Get_rank() == 0: manager.process.train()` as in NNLO and mpi_learn.
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
from nnlo_opt.core.base.errors import check_whole
from nnlo_opt.core.base.files import atomic_write


class MPIManager(Manager):
    """Trains on the ranks of `comm`: rank 0 is the master, the others are workers; a single rank is both.

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
        """Create a manager; workers train here. Collective: every rank of `comm` must call it.

        Args:
            comm: mpi4py communicator; None for this process only, without MPI.
            data: see `Data`.
            algo: see `Algo`.
            model_builder: see `ModelBuilder`.
            num_epochs: passes over all training samples, all workers together.
            train_list: list of file names (or whatever `data` accepts as such), or path of a list file. Every rank
                needs access to all files.
            val_list: the same for validation.
            num_masters: above 1, rank 0 is the top master, and each of the other masters leads a group.
            num_processes: ranks per worker, whose gradients are averaged.
            synchronous: True if workers wait for each other and average their gradients.
            verbose: True if rank 0 prints a line after every epoch.
            custom_objects: name -> custom layer or function of the model.
            early_stopping: rule such as "val_loss,<,4".
            target_metric: rule such as "val_acc,>,0.97".
            monitor: True to record CPU and memory of every worker in the history.
            thread_validation: ignored, because workers share the validation.
            checkpoint: folder accessible to all ranks. The training is saved there every `checkpoint_interval` epochs,
                and resumes from existing files.
            checkpoint_interval: epochs between two checkpoints.
            callbacks: Keras callbacks; their methods for batches are not called.
            seed: random seed for initial weights and shuffling.

        Raises:
            ConfigurationError: invalid arguments, or data and model that do not match.
            TrialError: on a worker, if the training failed.
        """
        super().__init__(comm, Settings.of(locals()))

    @property
    def process(self) -> "_Process":
        """The master process, under the name used in scripts of mpi_learn and NNLO."""
        return _Process(self)

    def train(self) -> dict[str, Any]:
        """Train, on the first call; return {"train_time", "history", "args"} in the format of mpi_learn and NNLO.

        "history" has one value per epoch of each metric, by rank `<world>:<parent>:<process>`. The master must call it,
        other ranks may. Raises `TrialError` if the training failed.
        """
        return self._history_of(self._train()[0])

    def figure_of_merit(self) -> float:
        """Return 1 - validation accuracy, or else the loss, of the last epoch (with early stopping, the best)."""
        return self._train()[0].figure_of_merit


class _Process:
    """Master process with the methods used in scripts of mpi_learn and NNLO."""

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
        """Write `json_name` with train_time, history and `meta`, and the trained model beside it."""
        details = self._manager.train() | dict(meta or {})
        atomic_write(Path(json_name), json.dumps(details, indent=1, default=str) + "\n")
        self._manager.save(Path(json_name).with_suffix(".keras"))


class MPIKFoldManager(Manager):
    """Cross validation: both lists are pooled and cut into folds; each fold validates a model trained on the others.

    >>> manager = MPIKFoldManager(2, None, Sums(10), Algo("sgd", loss="mse"), Line(), 1, ["1", "2"])
    >>> history = manager.train()
    >>> manager.figure_of_merit() > 0
    True

    With at least two ranks per fold, all folds are trained at the same time, else one after another. HDF5 files are cut
    by samples (stratified if labels are classes), generated data by files if there are enough, else by batches.
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
        """Arguments and errors are those of `MPIManager`. Collective: every rank of `comm` must call it."""
        check_whole("NFolds", NFolds)
        super().__init__(comm, Settings.of(locals()))

    def train(self) -> list[dict[str, Any]]:
        """Train all folds; return the result of `MPIManager.train` for each. Collective: every rank must call it."""
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
