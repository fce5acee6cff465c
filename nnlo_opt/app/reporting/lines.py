"""Lines that rank 0 prints during a search: one for each start, report or end of a trial."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from nnlo_opt.app.reporting.expected_end import epoch_s, expected_end_s
from nnlo_opt.app.reporting.jobs import joined_text, left_text
from nnlo_opt.app.reporting.words import (
    counted,
    counts_from_0_text,
    duration_text,
    for_terminal,
    metrics_text,
    outcome_for_block,
    point_text,
)
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import AssignmentEnd, Trial, TrialState, cause_of

if TYPE_CHECKING:  # not needed to print a state, which should start fast
    from nnlo_opt.core.coordinator.instructions import SearchPlan
    from nnlo_opt.core.coordinator.policy import Policy
    from nnlo_opt.core.training.options import TrainingOptions
    from nnlo_opt.core.trials.identity import Training

_TrialEnd: TypeAlias = ev.TrialCompleted | ev.TrialFailed | ev.TrialPruned


class _Lines(ABC):
    """Turns the journal events that searches and trainings have in common into lines."""

    #: minimum seconds between two lines about epochs of a trial, except the last one of a fold
    _epochs_s: ClassVar[float] = 1.0

    def __init__(self, write: Callable[..., None], n_fold: int) -> None:
        self._write = write
        #: number of folds; fold names are shown if there are several
        self._n_fold = n_fold
        #: trial -> time of its last line about an epoch
        self._said_at_s: dict[int, float] = {}
        #: assignment -> its last epoch, if not printed
        self._held: dict[int, ev.EpochEnded] = {}
        #: True once a line has told that a trial counts epochs from 0
        self._has_said_count = False

    def observe(self, event: ev.Event, ledger: Ledger) -> None:
        """Print the line of `event`, if any; `ledger` must have applied `event` already."""
        if isinstance(event, ev.EpochEnded):
            trial = ledger.assignments[event.assignment].trial
            if event.counts_from_0 and not self._has_said_count:
                self._has_said_count = True
                self._line(event, counts_from_0_text(trial))
            self._held[event.assignment] = event
            if event.time_s - self._said_at_s.get(trial, -math.inf) >= self._epochs_s:
                self._said_at_s[trial] = event.time_s
                self._epoch(self._held.pop(event.assignment), ledger)
            return
        for number in [number for number in self._held if ledger.assignments[number].end]:
            self._epoch(self._held.pop(number), ledger)
        self._other(event, ledger)

    def _epoch(self, event: ev.EpochEnded, ledger: Ledger) -> None:
        """Print the line of an epoch."""
        report = f"epoch {event.epoch}: {metrics_text(event.metrics)}"
        self._line(event, f"{self._fold(event.assignment, ledger)} {report}")

    def _other(self, event: ev.Event, ledger: Ledger) -> None:
        """Print the line of an event other than an epoch, if any."""
        match event:
            case ev.FoldBegan() if event.epoch and not _was_paused(event.assignment, ledger):
                self._line(event, f"{self._fold(event.assignment, ledger)} resumes after epoch {event.epoch}")
            case ev.RanksLost():
                dead = f"{ev.ranks_text(event.ranks)} of block {event.block} died"
                self._line(event, f"{dead}; {outcome_for_block(event.n_alive, event.n_ranks)}", "bad")
            case ev.TermBegan():
                self._line(event, f"job {event.job} coordinates: term {event.term}")
            case ev.JobJoined():
                self._line(event, joined_text(ledger.jobs[event.job]))
            case ev.JobLeft():
                self._line(event, left_text(ledger.jobs[event.job]), "bad" * event.expelled)
            case ev.AssignmentPreempted():
                self._line(event, f"{self._fold(event.assignment, ledger)} stops: {event.reason}")

    @abstractmethod
    def _fold(self, number: int, ledger: Ledger) -> str:
        """Return the name of the fold that assignment `number` trains."""

    def _line(self, event: ev.Event, text: str, style: str = "") -> None:
        """Print the line of an event."""
        self._write(text)


class ProgressLines(_Lines):
    """Turns the journal events of a search into lines.

    Args:
        write: prints one line in a `style` of `app.reporting.terminal`.
        plan: plan of the search.
        ledger: ledger with the trials of earlier starts, and this start.
        policy: knows the rank of a paused trial; None to omit it.
    """

    def __init__(
        self, write: Callable[..., None], plan: "SearchPlan", ledger: Ledger, policy: "Policy | None" = None
    ) -> None:
        super().__init__(write, plan.n_fold)
        self._plan = plan
        self._policy = policy
        #: time at which this start began, in seconds since the first start
        self._began_s = ledger.sessions[-1].started_at_s
        #: cause of a failure -> first trial that failed for it in this start
        self._causes: dict[str, int] = {}
        #: trials whose parameters this start has printed
        self._introduced: set[int] = set()

    def _other(self, event: ev.Event, ledger: Ledger) -> None:
        match event:
            case ev.FoldAssigned():
                self._assigned(event, ledger)
            case ev.TrialCompleted():
                spread = f" ± {event.figure_of_merit_std:.4f}" if self._n_fold > 1 else ""
                objectives = " ".join(f"{name} {value:.6g}" for name, value in event.objectives.items())
                result = objectives or f"{event.figure_of_merit:.6g}{spread}"
                self._ended(event, f"{ledger.trials[event.trial].standing}: {result}", ledger)
            case ev.TrialPaused():
                place = ""
                if self._policy is not None:  # its number of rungs may already include a promotion of the same step
                    epoch = max(a.epoch for a in ledger.trials[event.trial].assignments)
                    place = f", {self._policy.place(event.trial, epoch)}"
                left = self._left(event, ledger)
                self._line(event, f"trial {event.trial} paused: {event.figure_of_merit:.6g}{place}{left}")
            case ev.TrialPromoted():
                goal = "" if self._policy is None else f" {self._policy.goal(event.trial, event.n_rungs)}"
                self._line(event, f"trial {event.trial} promoted{goal}")
            case ev.TrialPruned() if _was_left(ledger.trials[event.trial]):
                pass  # its pause was printed, and the search is over
            case ev.TrialPruned():
                self._ended(event, f"pruned: {event.reason}", ledger)
            case ev.TrialFailed():
                cause = cause_of(event.reason, ledger.trials[event.trial].point)
                first = self._causes.setdefault(cause, event.trial)
                why = f": {for_terminal(event.reason)}" if first == event.trial else f" as trial {first} did"
                self._ended(event, f"failed{why}", ledger)
            case _:
                super()._other(event, ledger)

    def _assigned(self, event: ev.FoldAssigned, ledger: Ledger) -> None:
        """Print the parameters once per start, and later only that a fold starts again, and why."""
        trial, again, why = ledger.trials[event.trial], "", ""
        if event.attempt > 1:
            of_all, why = self._lost(trial, event)
            again = f" again on block {event.block}, attempt {event.attempt}{of_all}"
        if event.trial not in self._introduced:
            self._introduced.add(event.trial)
            values = f": {point_text(trial.point)}" if trial.point else ""
            origin = f" ({trial.origin})" * bool(trial.origin)
            self._line(event, f"trial {event.trial} starts{again or f' on block {event.block}'}{origin}{values}")
        elif again:
            self._line(event, f"{self._fold(event.assignment, ledger)} starts{again}{why}")

    def _lost(self, trial: Trial, event: ev.FoldAssigned) -> tuple[str, str]:
        """Return the number of this attempt out of `--max-attempts`, and why the last one was lost."""
        from nnlo_opt.core.coordinator.outcomes import losses_without_progress

        losses, most = losses_without_progress(trial, event.fold), self._plan.max_attempts
        if not losses or not most:
            return "", ""
        in_a_row = 1 + len(losses)
        of_all = f" of {most}" if in_a_row == event.attempt else f" ({in_a_row} of {most} without progress)"
        return of_all, f": {for_terminal(losses[-1].reason)}"

    def _ended(self, event: _TrialEnd, how: str, ledger: Ledger) -> None:
        best, n_all = ledger.best(self._plan.direction), self._plan.num_iterations
        is_new = isinstance(event, ev.TrialCompleted) and best is ledger.trials[event.trial]
        best_text = f"best {best.figure_of_merit:.6g} (trial {best.number})" if best else "no figure of merit yet"
        if ledger.objectives:
            is_new = event.trial in ledger.pareto
            best_text = "new in the " * is_new + f"Pareto set of {counted(len(ledger.pareto), 'trial')}"
        elif is_new:
            best_text = "new best"
        n_ended, n_paused = ledger.n_ended, ledger.n_by_state()[TrialState.PAUSED]
        parts = [how, best_text, f"{n_ended}{f'/{n_all}' * bool(n_all)} done" + f", {n_paused} paused" * bool(n_paused)]
        style = "bad" if isinstance(event, ev.TrialFailed) else "good" * is_new
        self._line(event, f"trial {event.trial} " + " | ".join(parts) + self._left(event, ledger), style)

    def _left(self, event: ev.Event, ledger: Ledger) -> str:
        """Return the time left, as the end of a line."""
        end_s = expected_end_s(ledger, self._plan.num_iterations)
        return "" if end_s is None else f" | about {duration_text(end_s - event.time_s)} left"

    def _fold(self, number: int, ledger: Ledger) -> str:
        assignment = ledger.assignments[number]
        return f"trial {assignment.trial}" + f" fold {assignment.fold}" * (self._n_fold > 1)

    def _line(self, event: ev.Event, text: str, style: str = "") -> None:
        self._write(f"[{event.time_s - self._began_s:9.1f} s] {text}", style=style)


def _was_paused(number: int, ledger: Ledger) -> bool:
    """Return True if assignment `number` resumes a fold that was paused at a rung."""
    last = ledger.assignments[number]
    earlier = [a for a in ledger.trials[last.trial].assignments if a.fold == last.fold and a.number < number]
    return bool(earlier) and earlier[-1].end is AssignmentEnd.PAUSED


def _was_left(trial: Trial) -> bool:
    """Return True if a trial was pruned because the search ended while it was paused."""
    return bool(trial.assignments) and trial.assignments[-1].end is AssignmentEnd.PAUSED


class TrainingLines(_Lines):
    """Turns the journal events of a training into lines: one per epoch, with the time left.

    Args:
        write: prints one line.
        training: options of the training, as given or as recorded.
        n_fold: folds of the training.
    """

    _epochs_s = 0.0

    def __init__(self, write: Callable[[str], None], training: "TrainingOptions | Training", n_fold: int = 1) -> None:
        super().__init__(write, n_fold)
        self._n_epochs = training.epochs or 1
        #: True if a rule may end the training before its last epoch
        self._may_end = bool(training.early_stopping or training.target_metric)

    def _epoch(self, event: ev.EpochEnded, ledger: Ledger) -> None:
        n_left = self._n_epochs - event.epoch
        left_s = n_left * (epoch_s(ledger.assignments[event.assignment], event.epoch, event.time_s) or 0.0)
        fold = f"{self._fold(event.assignment, ledger)}, " if self._n_fold > 1 else ""
        left = f", {'up to ' * self._may_end}{duration_text(left_s)} left" if n_left else ""
        self._line(event, f"{fold}epoch {event.epoch}/{self._n_epochs}: {metrics_text(event.metrics)}{left}")

    def _fold(self, number: int, ledger: Ledger) -> str:
        return f"fold {ledger.assignments[number].fold}" if self._n_fold > 1 else "training"
