"""Chooses the trials whose trained weights are kept.

A trial that is not among the best so far never will be, so its weights can be removed during the search, even by a
process that reads the journal late. The best expected trial, however, may change at any time: weights are removed only
after the search has considered the trial once, so a trial that it names much later may have lost them.
"""

import math
from collections.abc import Iterator
from heapq import nsmallest
from pathlib import Path

from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials.attempts import left_in, result_directory
from nnlo_opt.core.trials.checkpoint import WEIGHTS_NAME
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import Trial

#: folder of a trial with the files of its script
FILES_NAME = "files"


def best_trials(ledger: Ledger) -> list[Trial]:
    """Return the best trial, the Pareto set for several objectives, or the last part of a training; may be empty."""
    if ledger.objectives:
        return [ledger.trials[number] for number in ledger.pareto.trials]
    result = ledger.result
    return [result] if result and result.folds else []


def kept_trials(ledger: Ledger, n_best: int) -> set[int]:
    """Return the numbers of the `n_best` best feasible trials, of `best_trials`, and of the best expected one."""
    figures = [(ledger.sign * (t.figure_of_merit or 0.0), t.number) for t in ledger.trials if t.feasible]
    named = [*best_trials(ledger), *([] if ledger.best_expected is None else [ledger.best_expected])]
    return {number for _, number in nsmallest(n_best, figures)} | {trial.number for trial in named}


def weights_of(run: Path, trial: Trial) -> list[SafePath]:
    """Return the weight files of the finished folds, or the last saves of an objective."""
    folders = [result_directory(run, trial, fold) for fold in sorted(trial.folds)]
    return [path for folder in folders for path in folder.glob(WEIGHTS_NAME) or folder.glob("checkpoint-*")]


class WeightKeeper:
    """Finds weights to remove: of ended trials that are not among the best.

    Args:
        run: the run directory.
    """

    def __init__(self, run: Path) -> None:
        self._trials = SafePath(run) / "trials"
        #: trials whose weights were already yielded
        self._seen: set[int] = set()

    def surplus(self, ledger: Ledger, n_best: int) -> Iterator[SafePath]:
        """Yield the weight files, and saves of objectives, to remove, except those of earlier calls."""
        kept, until_s = kept_trials(ledger, n_best) | self._seen, _judged_until_s(ledger)
        for trial in ledger.trials:
            is_over = trial.state.ended and not trial.running and (trial.ended_at_s or 0.0) < until_s
            if is_over and trial.number not in kept:
                self._seen.add(trial.number)
                folder = self._trials / f"{trial.number:04d}"
                # The saves of an objective are its weights.
                name = WEIGHTS_NAME if ledger.identity.data is not None else "checkpoint-*"
                yield from (*left_in(folder, name), *folder.glob(FILES_NAME))


def _judged_until_s(ledger: Ledger) -> float:
    """Return the time up to which the search knew all ended trials at its last suggestion.

    Suggestions are made ahead, at most one for each block of this start, those of jobs that have left it included.
    """
    if ledger.ended_because or not ledger.sessions:
        return math.inf
    start = ledger.sessions[-1]
    jobs = [job for job in ledger.jobs.values() if job.is_here or (job.left_at_s or 0.0) >= start.started_at_s]
    n_blocks = sum(len(job.blocks) for job in jobs) if start.term else start.n_blocks
    ahead = ledger.trials[: -n_blocks or None]
    return max((trial.assignments[0].assigned_at_s for trial in ahead if trial.assignments), default=-math.inf)
