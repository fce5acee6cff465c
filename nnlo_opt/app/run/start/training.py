"""TrainingDriver: training of one model on all ranks, a search with one trial and one block, the whole world."""

import glob
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nnlo_opt.app.reporting.lines import TrainingLines
from nnlo_opt.app.reporting.words import losses_text, metrics_text
from nnlo_opt.app.run.afterwards.best_model import history_of, kept_epoch, weights_text
from nnlo_opt.app.run.options.values import Options
from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.start.driver import Driver, Ended
from nnlo_opt.app.run.start.one_start import run_command
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.errors import EXIT_FAILURE, EXIT_OK, EXIT_PREEMPTED
from nnlo_opt.core.base.files import atomic_write, make_directory, short_name
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.comm.messages import Json
from nnlo_opt.core.comm.topology import plan_single_block
from nnlo_opt.core.coordinator.coordinator import Observer, Search
from nnlo_opt.core.coordinator.instructions import SearchPlan
from nnlo_opt.core.coordinator.state import CoordinatorState
from nnlo_opt.core.search.base import Suggestion, TrialRecord
from nnlo_opt.core.space.space import Point
from nnlo_opt.core.training.history import as_nnlo_history
from nnlo_opt.core.trials.checkpoint import fold_directory
from nnlo_opt.core.trials.identity import RunIdentity
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_directory import RunDirectory
from nnlo_opt.core.trials.trial import Trial
from nnlo_opt.core.update_rules.staleness import StalenessStatistics, explicit_momentum

if TYPE_CHECKING:
    from nnlo_opt.engine.comm.mpi.world import World


def run(world: "World", options: Options, context: ProcessContext) -> int:
    """Run the command on this rank; return the exit code. Collective: every rank of the world."""
    topology = plan_single_block(world.size, **options.of_teams)
    return run_command(TrainingDriver, topology, world, options, context)


class _OnePoint:
    """The search of a training: always suggests the same point."""

    def __init__(self, point: Point) -> None:
        self._point = point

    def record(self, trials: Sequence[TrialRecord]) -> None: ...

    def enqueue(self, point: Point) -> None: ...

    def request_suggestion(self, request: int) -> None: ...

    def poll(self) -> Suggestion:
        return Suggestion(point=self._point)


class TrainingDriver(Driver):
    """Drives a training."""

    name = "TrainingDriver"
    is_one_training = True

    def plan_for(self, directory: RunDirectory) -> SearchPlan:
        """Return a plan of one trial; plus one from the last checkpoint if it failed or needs more epochs."""
        trials = directory.ledger.trials
        if not trials or not trials[-1].state.ended:
            return replace(self.options.plan, num_iterations=max(1, len(trials)))
        n_fold = self.options.plan.n_fold
        if all(self._is_done(directory, trials[-1], fold) for fold in range(n_fold)):
            return replace(self.options.plan, num_iterations=len(trials))
        for fold in range(n_fold):
            source = fold_directory(directory.path, trials[-1].number, fold)
            if source.is_dir():
                target = fold_directory(directory.path, len(trials), fold)
                make_directory(target.parent)
                source.copy(target)
        return replace(self.options.plan, num_iterations=len(trials) + 1)

    def _is_done(self, directory: RunDirectory, trial: Trial, fold: int) -> bool:
        """Return True if a fold has all its epochs, or ended by early stopping or by the same target."""
        done = trial.folds.get(fold)
        if done is None or done.n_epochs >= self.options.training.epochs:
            return done is not None
        ended_because = history_of(directory.path, trial, fold).get("ended_because", "")
        asked, known = self.options.training, directory.ledger.identity.training
        return "epochs are done" not in ended_because and asked.target_metric == known.target_metric

    def space_of(self, findings: Findings) -> None: ...

    def start_search(self, findings: Findings, identity: RunIdentity, ledger: Ledger) -> Search:
        return _OnePoint(self.options.point)

    def greet(self, directory: RunDirectory, findings: Findings) -> None:
        training, team = self.options.training, self.topology.teams[0]
        workers, groups = team.n_workers, len(team.groups)
        below = f" below {groups} sub-master{'s' * (groups > 1)}" if groups else ""
        pace = "synchronous" if training.waits else "asynchronous"
        steps = [training.rule.name, *(findings.optimizers or [training.steps_by(own=findings.trains_itself)])]
        each = f" for {'its' if len(findings.optimizers) > 1 else 'each of its'} models" * findings.trains_itself
        self.say(
            f"Training {findings.model} in `{directory.shown}`: {training.epochs} "
            f"epoch{'s' * (training.epochs != 1)}, {workers} worker{'s' * (workers > 1)}{below}, {pace} "
            f"{', '.join(filter(None, steps))}{each}.{f' {findings.replaced}' * bool(findings.replaced)}"
        )
        self._say_data(findings)

    def lines(self, state: CoordinatorState) -> Observer:
        return TrainingLines(self.say, self.options.training, state.plan.n_fold)

    def conclude(self, ended: Ended) -> int:
        directory, ledger = ended.directory, ended.directory.ledger
        if lost := losses_text(ledger):
            self.say(lost)
        if not ledger.complete:
            self.say(
                f"Training interrupted: {ledger.preempted_because}, after {self.options.run.n_done(ledger)} of "
                f"{self.options.training.epochs} epochs. Add `--restore` to resume."
            )
            return EXIT_PREEMPTED
        trial = ledger.trials[-1]
        if not trial.folds:
            self.say(f"The training failed: {trial.reason}", sys.stderr)
            return EXIT_FAILURE
        history = history_of(directory.path, trial, 0)
        path = self._write_history(directory, history)
        result, n_kept = trial.folds[0], kept_epoch(directory.path, trial, 0)
        n_done, n_all = result.n_epochs, max(result.n_epochs, self.options.training.epochs)
        epochs = f"{f'{n_done} of ' * (n_done < n_all)}{n_all} epoch{'s' * (n_all != 1)}"
        self.say(f"Trained {epochs} in {result.train_s:.1f} s: {history.get('ended_because', '')}.")
        if n_kept < n_done:
            self.say(f"Last epoch, {n_done}: {metrics_text(history['epochs'][-1])}")
        if self.options.training.with_point(self.options.point).momentum_correction:
            self.say(self._momentum_text(history))
        self.say(f"{'Best' if n_kept < n_done else 'Last'} epoch, {n_kept}: {metrics_text(result.metrics)}")
        self.say(f"History: `{directory.shown / path.name}`.")
        if ended.model_path is not None:
            weights = weights_text(directory.path, trial, self.options.plan.direction)
            self.say(f"Model: `{ended.model_path}`, {weights}.")
        return EXIT_OK

    def _momentum_text(self, history: dict[str, Json]) -> str:
        """Describe the momentum after correction for the measured staleness."""
        asked = self.options.training.with_point(self.options.point).optimizer_params["momentum"]
        mean = StalenessStatistics.from_json(history["staleness"]).mean
        return (
            f"Momentum: of the {asked:g} asked for, {explicit_momentum(asked, mean):.2f} was left for the optimizer, "
            f"because updates were {mean:.1f} versions old on average."
        )

    def _write_history(self, directory: RunDirectory, history: dict[str, Json]) -> SafePath:
        """Write the history of a fold in mpi_learn's format; return the path."""
        model = directory.ledger.identity.model.name
        # A run that was started under another name keeps its file.
        files = SafePath(directory.path)
        written = files.glob(f"{glob.escape(short_name(model, ''))}_*_history.json")
        own = short_name(f"{model}_{self.options.trial_name}", "_history.json")
        path = written[0] if written else files / own
        shown = as_nnlo_history(history, self.topology.world_size)
        shown["args"] = {"command_line": list(self.options.command_line), **self.options.training.to_json()}
        atomic_write(path, json.dumps(shown, indent=1) + "\n")
        return path
