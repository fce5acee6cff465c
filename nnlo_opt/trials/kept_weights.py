"""Choice of the trials whose trained weights are kept.

A trial that is not among the best so far is never among them again. So weights may be removed while a search runs, by
a process that knows the end of its journal late.
"""

from collections.abc import Iterator
from heapq import nsmallest
from pathlib import Path

from nnlo_opt.safe_path import SafePath
from nnlo_opt.trials.checkpoint import WEIGHTS_NAME, fold_directory
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.trial import Trial

#: folder of a trial for the files of a script
FILES_NAME = "files"


def best_trials(ledger: Ledger) -> list[Trial]:
    """Return the best trial, or the Pareto set of several objectives; of a training its last piece; or nothing."""
    if ledger.objectives:
        return [ledger.trials[number] for number in ledger.pareto.trials]
    result = ledger.result
    return [result] if result and result.folds else []


def kept_trials(ledger: Ledger, n_best: int) -> set[int]:
    """Return the numbers of the `n_best` best feasible trials, and of `best_trials`."""
    figures = [(ledger.sign * (t.figure_of_merit or 0.0), t.number) for t in ledger.trials if t.feasible]
    return {number for _, number in nsmallest(n_best, figures)} | {trial.number for trial in best_trials(ledger)}


def weights_of(run: Path, trial: Trial) -> list[SafePath]:
    """Return the files of the weights of the finished folds, or the last saves if the trial is of an objective."""
    folders = [fold_directory(run, trial.number, fold) for fold in sorted(trial.folds)]
    return [path for folder in folders for path in folder.glob(WEIGHTS_NAME) or folder.glob("checkpoint-*")]


class WeightKeeper:
    """Finds the weights of trials that have ended and are not among the best.

    Args:
        run: the run directory.
    """

    def __init__(self, run: Path) -> None:
        self._trials = SafePath(run) / "trials"
        #: trials whose weights were found
        self._seen: set[int] = set()

    def surplus(self, ledger: Ledger, n_best: int) -> Iterator[SafePath]:
        """Yield the files of weights, and the saves of objectives, to be removed that no earlier call has yielded."""
        kept = kept_trials(ledger, n_best) | self._seen
        for trial in ledger.trials:
            if trial.state.ended and not trial.running and trial.number not in kept:
                self._seen.add(trial.number)
                folder = self._trials / f"{trial.number:04d}"
                # The saves of an objective are its weights.
                name = WEIGHTS_NAME if ledger.identity.data is not None else "checkpoint-*"
                yield from (*folder.glob(f"fold*/{name}"), *folder.glob(FILES_NAME))
