"""End of a search, from its best model to the command of `--on-end`."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import TextIO

from nnlo_opt.comm.messages import Json
from nnlo_opt.comm.run_messages import ExportModel, ModelExported
from nnlo_opt.errors import EXIT_FAILURE, CheckpointError, OutOfTimeError
from nnlo_opt.export.mirror import LAST_S, Mirror
from nnlo_opt.files import parse_object
from nnlo_opt.records import checked
from nnlo_opt.reporting.follow import Reporter
from nnlo_opt.reporting.page import PAGE_NAME, wrote_page
from nnlo_opt.reporting.results import write_results
from nnlo_opt.run.start.serving_ranks import RankDiedError, ServingRanks
from nnlo_opt.runtime.environment import start_helper
from nnlo_opt.runtime.pulse import PULSE
from nnlo_opt.safe_path import MOST_BYTES
from nnlo_opt.space.space import TRAIN_PREFIX, Point
from nnlo_opt.training.history import FoldRecord
from nnlo_opt.training.options import TrainingOptions
from nnlo_opt.trials.checkpoint import fold_directory, remove_all
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.run_directory import RunDirectory
from nnlo_opt.trials.run_state import state_of
from nnlo_opt.trials.trial import Trial

#: name of the best model in the run directory, without the ending of its framework
BEST_MODEL = "best_model"
#: least seconds that ranks have to leave after a search in which a rank may be stuck
LEAVE_S = 60.0
#: seconds that the command of `--on-end` may take
ON_END_S = 60.0


def save_model(
    ranks: ServingRanks, candidates: Sequence[int], directory: Path, trial: Trial, direction: str, measure: bool = False
) -> ModelExported:
    """Have the first of the trainer ranks `candidates` that answers save, and measure, the model of a trial."""
    order = ExportModel(
        point=trial.point,
        weights_path=str(fold_directory(directory.resolve(), trial.number, best_fold(trial, direction))),
        path=str((directory / BEST_MODEL).resolve()),
        measure=measure,
    )
    why = ""
    for rank in candidates:
        try:
            return ranks.ask(rank, order, ModelExported)
        except RankDiedError as error:
            why = str(error)
        except OutOfTimeError as error:
            return ModelExported(path="", error=str(error))
    return ModelExported(path="", error=why)


def best_fold(trial: Trial, direction: str) -> int:
    """Return the fold of a complete trial whose model is kept: the one with the best figure of merit."""
    sign = -1.0 if direction == "max" else 1.0
    return min(trial.folds, key=lambda fold: (sign * trial.folds[fold].figure_of_merit, fold))


def history_of(directory: Path, trial: int, fold: int) -> dict[str, Json]:
    """Return the history that the master of a fold has written; CheckpointError if it cannot be read."""
    path = fold_directory(directory, trial, fold) / "history.json"
    try:
        checked(history := parse_object(path.read_bytes(MOST_BYTES)), FoldRecord)
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(f"The history of a fold must be readable. Received: `{path}` ({error}).") from error
    return history


def kept_epoch(directory: Path, trial: Trial, fold: int) -> int:
    """Return the epoch whose weights are kept of a finished fold; the last one if its history does not say it."""
    try:
        return int(history_of(directory, trial.number, fold)["kept_epoch"])
    except (CheckpointError, KeyError):
        return trial.folds[fold].n_epochs


def weights_text(directory: Path, trial: Trial, direction: str) -> str:
    """Return in words which weights the saved model of a complete trial has."""
    fold = best_fold(trial, direction)
    epoch, n_epochs = kept_epoch(directory, trial, fold), trial.folds[fold].n_epochs
    of_fold = f"fold {fold} (the best of {len(trial.folds)}), " if len(trial.folds) > 1 else ""
    return f"with the weights of {of_fold}epoch {epoch}{f' (the best of {n_epochs})' * (epoch < n_epochs)}"


def without_validation(directory: Path, trial: Trial, training: TrainingOptions) -> Point:
    """Return the training options by which a trial is trained again without validation data.

    Rules that need these give way to the number of epochs after which its weights were best.
    """
    epochs = [kept_epoch(directory, trial, fold) for fold in trial.folds]
    rules = [name for name in ("early_stopping", "target_metric") if "val_" in (getattr(training, name) or "")]
    n_epochs = round(fmean(epochs or [training.epochs]))
    return {f"{TRAIN_PREFIX}epochs": n_epochs} | {f"{TRAIN_PREFIX}{name}": None for name in rules}


def write_last_reports(reporter: Reporter | None, directory: RunDirectory, say: Callable[[str, TextIO], None]) -> None:
    """Write the reports for the last time; they can always be rebuilt from the journal."""
    if reporter is not None and reporter.finish():
        has_page = reporter.has_page
    else:
        try:
            write_results(directory.path, directory.ledger)
        except OSError as error:
            say(
                f"results.csv and summary.json could not be written ({error.strerror or error}): `nnlo-opt report "
                f"{directory.shown}` writes them from the journal.",
                sys.stderr,
            )
            return
        # The reporter, which has a time limit, may have failed because of the page: this process does not try it again.
        has_page = reporter is None and wrote_page(directory.path, directory.ledger)
    if not has_page:
        say(f"{PAGE_NAME} is not written: `nnlo-opt report {directory.shown}` writes it, or says why.", sys.stderr)


def ask_mirrors(mirrors: Sequence[Mirror], left_s: float | None) -> float:
    """Ask the mirrors to end; return the monotonic time until which they may live on.

    Args:
        left_s: seconds that this process has; None without a limit.
    """
    for mirror in mirrors:
        mirror.ask()
    return time.monotonic() + (LAST_S if left_s is None else min(LAST_S, left_s / 4))


def end_mirrors(
    mirrors: Sequence[Mirror], directory: RunDirectory, until_s: float, say: Callable[[str, TextIO], None]
) -> None:
    """Wait for the mirrors, which were asked to end, until a monotonic time at which they are killed."""
    for mirror in mirrors:
        if not mirror.finish(max(0.0, until_s - time.monotonic())):
            command = f"`nnlo-opt export {directory.shown} --to {mirror.tool} --overwrite`"
            say(f"The mirror for {mirror.tool} is behind: {command} brings it up to date.", sys.stderr)


def remove_stale_checkpoints(directory: Path, ledger: Ledger) -> None:
    """Remove checkpoints of ended folds whose master was killed before it could remove them."""
    for assignment in ledger.assignments:
        PULSE.ticks += 1
        trial = ledger.trials[assignment.trial]
        if trial.state.ended or assignment.fold in trial.folds:
            remove_all(fold_directory(directory, trial.number, assignment.fold))


def end_if_stuck(blocks: Collection[int], trial_timeout_s: float, say: Callable[[str, TextIO], None]) -> None:
    """End the job later if ranks of `blocks`, stuck in code of the user, keep it from ending; return at once."""
    if not blocks:
        return

    def leave() -> None:
        say(
            f"Block {' and '.join(map(str, sorted(blocks)))} is stuck in a trial that took too long: the job "
            "ends. Finished trials are in the journal.",
            sys.stderr,
        )
        os._exit(EXIT_FAILURE)

    timer = threading.Timer(max(LEAVE_S, trial_timeout_s), leave)
    timer.daemon = True  # a job whose ranks all leave is not kept by it
    timer.start()


def run_at_end(
    command: str, directory: RunDirectory, code: int, left_s: float | None, say: Callable[[str, TextIO], None]
) -> None:
    """Have a shell run the user's command about the end of a run, for ON_END_S at most.

    If it fails, a warning is printed.

    Args:
        code: exit code of the run.
        left_s: seconds that a preempted job has left; None without a limit.
    """
    ledger = directory.ledger
    state = state_of(directory.path, ledger, at_work=False)
    best = ledger.best()
    facts = {
        "RUN": str(directory.path),
        "STATE": state,
        "CODE": str(code),
        "REASON": ledger.ended_because,
        "TRIALS": str(len(ledger.trials)),
        "BEST_TRIAL": "" if best is None else str(best.number),
        "BEST_FIGURE": "" if best is None else repr(best.figure_of_merit),
        "BEST_POINT": "" if best is None else json.dumps(best.point),
    }
    environ = os.environ | {f"NNLO_OPT_{name}": text for name, text in facts.items()}
    sys.stdout.flush()
    try:
        process = start_helper(["/bin/sh", "-c", command], environ, stdin=subprocess.DEVNULL)
    except OSError as error:
        say(f"`--on-end` could not be started ({error.strerror or error}).", sys.stderr)
        return
    limit_s = ON_END_S if left_s is None else min(ON_END_S, max(1.0, left_s))
    until_s = time.monotonic() + limit_s
    while process.poll() is None and time.monotonic() < until_s:
        PULSE.ticks += 1
        time.sleep(0.05)
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        say(f"`--on-end` had not ended after {limit_s:.0f} s, and was killed: `{command}`.", sys.stderr)
    elif process.returncode:
        say(f"`--on-end` has failed with code {process.returncode}: `{command}`.", sys.stderr)
