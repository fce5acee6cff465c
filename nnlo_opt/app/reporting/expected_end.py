"""Expected end of a run, computed from its ledger."""

from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import Assignment, Trial


def expected_end_s(ledger: Ledger, n_all: int) -> float | None:
    """Return the expected end of a search in seconds since its first start; None if unknown.

    It is extrapolated from ended and paused trials of this start, and from the epochs of running trials: of a hundred
    trials that began together, 99 are nearly done when the first one ends.

    Args:
        ledger: the trials.
        n_all: total number of trials; 0 if unknown.
    """
    session = ledger.sessions[-1]
    new, in_all = _under_way(ledger)
    # Without epochs nothing is known about the time since the last end.
    at_s = session.last_at_s if new else session.measured_at_s
    n_new, n_left = ledger.n_measured - session.n_before + new, n_all - ledger.n_measured - in_all
    return at_s + (at_s - session.started_at_s) / n_new * n_left if n_new > 0 and n_left > 0 else None


def _under_way(ledger: Ledger) -> tuple[float, float]:
    """Return the epochs of running trials, as a number of full trials: epochs of this start, and all epochs."""
    new = in_all = 0.0
    began_s, n_fold = ledger.sessions[-1].started_at_s, ledger.identity.n_fold
    for trial in ledger.under_way.values():
        if n_epochs := epochs_of(ledger, trial):
            of_start = sum(a.epoch - a.first_epoch for a in trial.assignments if a.assigned_at_s >= began_s)
            new += of_start / (n_epochs * n_fold)
            in_all += epochs_reached(trial, n_epochs) / (n_epochs * n_fold)
    return new, in_all


def epochs_of(ledger: Ledger, trial: Trial) -> int | None:
    """Return the number of epochs of a trial's full training; None if only the trial knows it."""
    identity = ledger.identity
    known = trial.point.get("train.epochs") or (None if identity.pruner is None else identity.pruner.max_epochs)
    if known is None and identity.data is not None:  # not for an objective
        known = identity.training.epochs
    reached = max((assignment.epoch for assignment in trial.assignments), default=0)
    return None if known is None or reached > known else int(known)


def epochs_reached(trial: Trial, n_epochs: int) -> int:
    """Return the total epochs that all folds of a trial have reached, of `n_epochs` each."""
    return sum(({a.fold: a.epoch for a in trial.assignments} | dict.fromkeys(trial.folds, n_epochs)).values())


def epoch_s(assignment: Assignment, epoch: int, at_s: float) -> float | None:
    """Return the seconds per epoch of an assignment that reached `epoch` at `at_s`; None before its first."""
    n_epochs = epoch - assignment.first_epoch
    return (at_s - (assignment.started_at_s or 0.0)) / n_epochs if n_epochs > 0 else None
