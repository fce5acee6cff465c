"""Lines that rank 0 prints while a search runs: one for each start, report or end of a trial."""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from nnlo_opt.training.options import TrainingOptions
from nnlo_opt.trials import events as ev
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.trial import TrialState

#: longest reason shown on a terminal, in characters
MOST_CHARACTERS = 300


def duration(seconds: float) -> str:
    """Return a number of seconds as h:mm:ss."""
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def value_text(value: Any) -> str:
    """Return a short text for a parameter's value: floats have four significant digits."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def point_text(point: Mapping[str, Any]) -> str:
    """Return a point of the search space on one line."""
    return " ".join(f"{name}={value_text(value)}" for name, value in point.items())


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Return metrics on one line, with four decimals."""
    return " ".join(f"{name} {value:.4f}" for name, value in metrics.items())


def values_text(values: Mapping[str, float]) -> str:
    """Return the values of objectives on one line, with six significant digits."""
    return " ".join(f"{name} {value:.6g}" for name, value in values.items())


def shortened(reason: str) -> str:
    """Return a reason cut to the width of a terminal; the journal and results.csv hold the full text."""
    return reason if len(reason) <= MOST_CHARACTERS else reason[: MOST_CHARACTERS - 4] + " ..."


_TrialEnd: TypeAlias = ev.TrialCompleted | ev.TrialFailed | ev.TrialPruned


class ProgressLines:
    """Turns journal events into progress lines.

    Args:
        write: prints one line.
        num_iterations: number of trials that the search is to end with.
        n_fold: folds of a trial; names and spreads of folds are shown if there are several.
        direction: "min" or "max", the direction of the figure of merit.
    """

    def __init__(self, write: Callable[[str], None], num_iterations: int, n_fold: int, direction: str) -> None:
        self._write = write
        self._num_iterations = num_iterations
        self._n_fold = n_fold
        self._direction = direction
        #: trials that had ended before this session began; they are left out of its speed
        self._n_before: int | None = None

    def observe(self, event: ev.Event, ledger: Ledger) -> None:
        """Print the line of `event`, if it has one; `ledger` must have applied `event` already."""
        if self._n_before is None:
            self._n_before = ledger.n_ended - isinstance(event, _TrialEnd)
        match event:
            case ev.FoldAssigned():
                point = ledger.trials[event.trial].point
                again = f", attempt {event.attempt}" if event.attempt > 1 else ""
                values = f": {point_text(point)}" if point else ""
                start = f"starts on block {event.block}{again}{values}"
                self._line(event, f"{self._fold(event.assignment, ledger)} {start}")
            case ev.FoldBegan() if event.epoch:
                self._line(event, f"{self._fold(event.assignment, ledger)} resumes after epoch {event.epoch}")
            case ev.EpochEnded():
                report = f"epoch {event.epoch}: {metrics_text(event.metrics)}"
                self._line(event, f"{self._fold(event.assignment, ledger)} {report}")
            case ev.TrialCompleted():
                spread = f" ± {event.figure_of_merit_std:.4f}" if self._n_fold > 1 else ""
                result = values_text(event.objectives) or f"{event.figure_of_merit:.6g}{spread}"
                self._ended(event, f"complete: {result}", ledger)
            case ev.RanksLost():
                dead = f"{ev.ranks_text(event.ranks)} of block {event.block} died"
                self._line(event, f"{dead}; {_outcome_for_block(event.n_alive, event.n_ranks)}")
            case ev.AssignmentPreempted():
                self._line(event, f"{self._fold(event.assignment, ledger)} stops: {event.reason}")
            case ev.TrialPaused():
                epochs = max(a.epoch for a in ledger.trials[event.trial].assignments)
                self._line(event, f"trial {event.trial} paused after epoch {epochs}: {event.figure_of_merit:.6g}")
            case ev.TrialPromoted():
                epochs = max(a.epoch for a in ledger.trials[event.trial].assignments)
                self._line(event, f"trial {event.trial} promoted after epoch {epochs} (rung {event.n_rungs})")
            case ev.TrialPruned() | ev.TrialFailed():
                self._ended(event, f"{ledger.trials[event.trial].state}: {shortened(event.reason)}", ledger)

    def _ended(self, event: _TrialEnd, how: str, ledger: Ledger) -> None:
        best = ledger.best(self._direction)
        best_text = f"best {best.figure_of_merit:.6g} (trial {best.number})" if best else "no figure yet"
        if ledger.objectives:
            n_best = len(ledger.pareto)
            best_text = f"Pareto set of {n_best} trial{'s' * (n_best != 1)}"
        n_ended = ledger.n_ended
        n_paused = ledger.n_by_state()[TrialState.PAUSED]
        parts = [how, best_text, f"{n_ended}/{self._num_iterations} done" + f", {n_paused} paused" * bool(n_paused)]
        session = ledger.sessions[-1]
        elapsed_s = event.time_s - session.started_at_s
        parts.append(f"elapsed {duration(elapsed_s)}")
        n_new = n_ended - (self._n_before or 0)
        n_left = self._num_iterations - n_ended - n_paused
        if n_left > 0 and n_new > 0:
            parts.append(f"about {duration(elapsed_s / n_new * n_left)} left")
        self._line(event, f"trial {event.trial} " + " | ".join(parts))

    def _fold(self, number: int, ledger: Ledger) -> str:
        """Return the name of the fold that assignment `number` trains."""
        assignment = ledger.assignments[number]
        return f"trial {assignment.trial}" + f" fold {assignment.fold}" * (self._n_fold > 1)

    def _line(self, event: ev.Event, text: str) -> None:
        self._write(f"[{event.time_s:9.1f} s] {text}")


class TrainingLines(ProgressLines):
    """Turns the journal events of a training into lines: one for each epoch, with the time left.

    Args:
        write: prints one line.
        training: options of the training.
        n_fold: as of `ProgressLines`.
    """

    def __init__(self, write: Callable[[str], None], training: TrainingOptions, n_fold: int = 1) -> None:
        super().__init__(write, 1, n_fold, "min")
        self._n_epochs = training.epochs
        #: True if a rule may end the training before its last epoch
        self._may_end = bool(training.early_stopping or training.target_metric)
        #: assignment -> time at which it began in seconds, and number of epochs done before
        self._began: dict[int, tuple[float, int]] = {}

    def observe(self, event: ev.Event, ledger: Ledger) -> None:
        """Print the line of `event`, if it has one; the end of the training has none."""
        match event:
            case ev.FoldAssigned() if event.attempt > 1:
                self._line(event, f"{self._fold(event.assignment, ledger)} starts again, attempt {event.attempt}")
            case ev.FoldBegan():
                self._began[event.assignment] = event.time_s, event.epoch
                super().observe(event, ledger)
            case ev.EpochEnded():
                self._line(event, self._epoch(event, ledger))
            case ev.RanksLost() | ev.AssignmentPreempted():
                super().observe(event, ledger)

    def _epoch(self, event: ev.EpochEnded, ledger: Ledger) -> str:
        began_s, n_before = self._began[event.assignment]
        n_left = self._n_epochs - event.epoch
        left_s = (event.time_s - began_s) / (event.epoch - n_before) * n_left
        fold = f"{self._fold(event.assignment, ledger)}, " if self._n_fold > 1 else ""
        left = f", {'up to ' * self._may_end}{duration(left_s)} left" if n_left else ""
        return f"{fold}epoch {event.epoch}/{self._n_epochs}: {metrics_text(event.metrics)}{left}"

    def _fold(self, number: int, ledger: Ledger) -> str:
        return f"fold {ledger.assignments[number].fold}" if self._n_fold > 1 else "training"

    def _line(self, event: ev.Event, text: str) -> None:
        self._write(text)


def _outcome_for_block(n_alive: int, n_ranks: int) -> str:
    """Return the clause on a block that has `n_alive` ranks left, of them `n_ranks` that train."""
    if n_ranks:
        spare = f", {n_alive - n_ranks} spare" * (n_alive > n_ranks)
        return f"the block continues with {n_ranks} rank{'s' * (n_ranks > 1)}{spare}"
    return f"the block is spare, as its last {n_alive} cannot train" if n_alive else "the block is lost"


def losses_text(ledger: Ledger) -> str:
    """Return a sentence on the ranks that died in the last session and on their blocks; empty if no rank died."""
    session = ledger.sessions[-1]
    parts = [
        f"{ev.ranks_text(sorted(ranks))} of block {block} ({_outcome_for_block(*session.ranks_left[block])})"
        for block, ranks in sorted(session.lost_ranks.items())
    ]
    return f"Died: {'; '.join(parts)}." if parts else ""


def outcome(ledger: Ledger) -> str:
    """Return the number of trials in each state, on one line."""
    counts = ", ".join(f"{n} {state}" for state, n in ledger.n_by_state().items() if n)
    return counts or "no trial yet"
