"""Trainings on the ranks of a user's script, using the drivers' session."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnlo_opt.ancestors.manager.recipe import workload_of
from nnlo_opt.ancestors.manager.settings import Settings
from nnlo_opt.app.reporting.lines import TrainingLines
from nnlo_opt.app.run.afterwards.best_model import best_fold, history_of
from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.rank.roles import RoleSetup
from nnlo_opt.app.run.start.embedded import ScriptRank, noting_environment, read_shared_events, temporary_run
from nnlo_opt.app.run.start.host import ScriptHost
from nnlo_opt.app.run.start.training import TrainingDriver
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.base.safe_path import discard
from nnlo_opt.core.block.task import FoldTask
from nnlo_opt.core.models.adapter import EpochCallbacks
from nnlo_opt.core.training.history import as_nnlo_history
from nnlo_opt.core.trials.attempts import result_directory
from nnlo_opt.core.trials.checkpoint import load_weights
from nnlo_opt.core.trials.events import AssignmentFailed, Event
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.engine.comm.rank_group import RankGroup, abort_on_error
from nnlo_opt.engine.runtime.launched import warn_of_split_world

if TYPE_CHECKING:
    from nnlo_opt.engine.comm.mpi.world import Communicator

#: lines of another rank's traceback that an error shows
_N_LINES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldOutcome:
    """Result of one fold, known on every rank."""

    figure_of_merit: float
    #: history as written by the master
    history: dict[str, Any]
    #: number of ranks that trained the fold
    n_ranks: int


class Manager:
    """Training of one or more folds on the ranks of a communicator, from arguments to the trained model."""

    def __init__(self, comm: "Communicator | None", settings: Settings) -> None:
        self._settings = settings
        self.data, self.algo, self.model_builder = settings.data, settings.algo, settings.model_builder
        self.num_epochs, self.num_masters = settings.epochs, settings.n_masters
        self.num_processes = settings.n_processes
        self.train_list, self.val_list = settings.train_list, settings.val_list
        self.synchronous, self.verbose = settings.synchronous, settings.verbose
        self.callbacks = list(settings.callbacks)
        #: one for each fold; None before the end of the training
        self._outcomes: list[FoldOutcome] | None = None
        #: error of a failed training, else None
        self._error: TrialError | None = None
        #: weights and model state of the best fold
        self._trained = np.empty(0, np.float32), np.empty(0, np.float32)
        self._adapter: Any = None
        if comm is not None and comm.Get_name() != "MPI_COMM_SELF":
            from nnlo_opt.engine.comm.mpi.world import WORLD

            warn_of_split_world(WORLD.Get_size(), stacklevel=3)
        self._group = group = RankGroup(comm)
        self._undo_abort = abort_on_error(group.comm)
        #: True on the rank that directs the training
        self.is_master = self.should_validate = group.rank == 0
        self._topology = topology = group.attempt(lambda: settings.topology(group.size))
        team = next(team for team in topology.teams if group.rank in team.world_ranks)
        position = group.rank - team.master_rank
        #: number of workers in this rank's team, and number of this worker from 1; -1 on a master
        self.num_workers = team.n_workers
        self.worker_id = team.worker_of(position) if position else -1
        self._options = options = group.attempt(lambda: settings.options(team))
        with noting_environment() as self._undo_environment:
            context = ProcessContext().settled(group, topology, options)
        self._workload = workload_of(settings, options, topology, group, context)
        self._options = options = self._workload.options
        trains = group.rank in team.trainer_ranks
        roles = RoleSetup(
            topology=topology,
            options=options,
            workload=self._workload,
            context=context if trains else replace(context, monitor=None),
            writes_checkpoints=settings.checkpoint is not None,
            make_callbacks=self._make_callbacks if self.callbacks else None,
            ends_with_a_death="A rank has died: the training ends here; a manager that restores resumes from its "
            "checkpoint.",
        )
        self._script_rank = ScriptRank(group, roles)
        if not self.is_master:
            self._script_rank.serve()
            self._share_results()

    def _make_callbacks(self, task: FoldTask) -> EpochCallbacks:
        from nnlo_opt.engine.models.keras.callbacks import KerasCallbacks

        return KerasCallbacks(self.callbacks, self.num_epochs)

    # ------------------------------------------------------------ the training

    def _train(self) -> list[FoldOutcome]:
        """Return the outcome of every fold; on the master the first call trains. TrialError if a fold failed."""
        if self._outcomes is None:
            self._run()
        if self._error is not None:
            raise self._error
        assert self._outcomes is not None
        return self._outcomes

    def _run(self) -> None:
        folder, training = self._settings.checkpoint, self._options.training
        lines = TrainingLines(partial(print, flush=True), training, self._settings.n_fold)
        script = ScriptHost(
            program=type(self).__name__,
            findings=Findings(model=self._options.model, kind="model", source="", sha256="", figure="figure_of_merit"),
            observers=[lines] if self.verbose else [],
            warn=partial(print, file=sys.stderr, flush=True),
        )
        with temporary_run() as temporary:
            run = temporary if folder is None else self._options.run
            self._script_rank.coordinate(replace(self._options, run=run), script, TrainingDriver)
            self._share_results()

    def _share_results(self) -> None:
        """Share the results of the training, and release its resources. Collective: every rank."""
        self._outcomes = []
        directory = self._script_rank.end()
        if directory is None:
            return
        try:
            self._read_outcomes(directory, read_shared_events(self._group, directory))
        finally:
            if self._settings.checkpoint is None:
                discard(directory.parent)  # also on the nodes of other masters

    def _read_outcomes(self, directory: Path, events: Sequence[Event]) -> None:
        """Read the outcome of every fold from the journal, and share the weights of the best one."""
        group, ledger = self._group, Ledger(events)
        trial = ledger.trials[-1]
        if len(trial.folds) < self._settings.n_fold:
            self._error = TrialError(trial.reason)
            traces = [event.traceback for event in events if isinstance(event, AssignmentFailed)]
            for line in traces[-1].splitlines()[-_N_LINES:] if traces else []:
                self._error.add_note(line)
            return
        # Each master reads its own files, because it may be on another node; an earlier start may have had more
        # masters.
        teams = dict.fromkeys(trial.folds, self._topology.teams[0])
        for assignment in trial.assignments:
            if ledger.sessions[-1].started_at_s <= assignment.assigned_at_s:
                teams[assignment.fold] = self._topology.teams[assignment.team]
        outcomes = []
        for fold, found in sorted(trial.folds.items()):
            root = teams[fold].master_rank
            own = history_of(directory, trial, fold) if group.rank == root else None
            history, n_ranks = group.share_json(own, root), len(teams[fold].world_ranks)
            outcomes.append(FoldOutcome(figure_of_merit=found.figure_of_merit, history=history, n_ranks=n_ranks))
        self._outcomes = outcomes
        best = best_fold(trial, "min")
        root = teams[best].master_rank
        weights, state = None, None
        if group.rank == root:
            weights, state = load_weights(result_directory(directory, trial, best))
        self._trained = group.share(weights, root), group.share(state, root)

    # ------------------------------------------------------------ the model

    @property
    def model(self) -> Any:
        """The trained model, on any rank: newly built, with the trained weights. With folds, the best one."""
        return self._trained_adapter().synced_model()

    def save(self, path: str | Path) -> None:
        """Write the trained model, in Keras's format if the path ends in .keras. Only rank 0 writes."""
        if self.is_master:
            adapter = self._trained_adapter()
            try:
                adapter.save(Path(path))
            except ValueError as error:
                reason = str(error).splitlines()[0]
                raise ConfigurationError(f"The model cannot be saved as {path}: {reason}") from error

    def close(self) -> None:
        """Release communicators and copied files; if there was no training, workers stop waiting."""
        if self._outcomes is None:
            self._script_rank.dismiss()
            self._share_results()
        if self._adapter is not None:
            self._adapter.release()
            self._adapter = None
        self.data.finalize()
        self._undo_environment()
        self._group.close()
        self._undo_abort()

    def free_comms(self) -> None:
        """Close the manager, under mpi_learn's name."""
        self.close()

    def _trained_adapter(self) -> Any:
        if self._adapter is None:
            if not len(self._trained[0]):
                raise ConfigurationError("There is no trained model yet. Call `train` first.")
            self._workload.prepare()
            self._adapter = self._workload.trained_model({}, *self._trained, seed=self._settings.seed)
        return self._adapter

    def _history_of(self, outcome: FoldOutcome) -> dict[str, Any]:
        arguments: Mapping[str, Any] = {**self._options.training.to_json(), **self.algo.get_config()}
        return {**as_nnlo_history(outcome.history, outcome.n_ranks), "args": arguments}
