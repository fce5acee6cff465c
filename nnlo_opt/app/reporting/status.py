"""Status of a run at one time: state, progress, trials; for users and scripts."""

from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any, TypeAlias

from nnlo_opt.app.reporting.expected_end import epoch_s, epochs_of, epochs_reached, expected_end_s
from nnlo_opt.app.reporting.jobs import jobs_of
from nnlo_opt.app.reporting.results import best_of, block_utilization, lost_of
from nnlo_opt.app.reporting.words import losses_text
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_state import RunState, state_of
from nnlo_opt.core.trials.trial import Assignment, Trial, failures

#: most ended trials in a status
N_ENDS = 10
#: fields of a running fold's assignment
_OF_ASSIGNMENT = ("trial", "fold", "attempt", "block", "n_ranks", "epoch")

Row: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a search in trials, or of a training in epochs over all its folds."""

    #: "trial" or "epoch"
    unit: str
    n_done: int
    #: total; None if the journal does not contain it
    n_all: int | None
    #: expected end in seconds since the first start; None if unknown
    end_s: float | None = None

    @property
    def share(self) -> float:
        """Completed fraction, 0 to 1."""
        return min(1.0, self.n_done / self.n_all) if self.n_all else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """Status of a run at one time. Times are in seconds."""

    run: str
    state: RunState
    #: reason for the end; empty before it
    reason: str
    #: search or training, and its model
    kind: str
    figure: str
    direction: str
    progress: Progress
    n_trials: dict[str, int]
    #: total time of all starts
    elapsed_s: float
    #: expected time left; None if unknown
    left_s: float | None
    #: as in summary.json; None before the first trial is complete
    best: dict[str, Any] | None
    #: non-dominated trials; empty for a single objective
    pareto: tuple[int, ...]
    #: best figure of merit after each feasible trial; for a training the figure after each epoch
    curve: tuple[float, ...]
    #: running folds: `_OF_ASSIGNMENT`, the total number of epochs (None if only the trial knows it), the figure of
    #: merit after the last epoch (None before the first) and the seconds since the assignment
    running: list[Row]
    #: the last ended trials, latest first, each with the seconds since its end
    ended: list[Row]
    #: reasons of failures and their trials, most frequent first
    failures: list[Row]
    n_blocks: int
    n_blocks_busy: int
    block_utilization: float | None
    #: as in summary.json, and a description
    lost: dict[str, Any]
    losses: str
    #: of a shared run, as in `jobs_of`; else empty
    jobs: list[Row] = field(default_factory=list)

    @property
    def lacks_jobs(self) -> bool:
        """True if jobs have shared the run, it is not finished, and none of them is there."""
        is_there = not self.state.is_over and any(job["left_s"] is None for job in self.jobs)
        return bool(self.jobs) and not is_there and self.state is not RunState.FINISHED

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain data; only that of a shared run has jobs."""
        plain = {**asdict(self), "progress": {**asdict(self.progress), "share": self.progress.share}}
        return plain if self.jobs else {name: value for name, value in plain.items() if name != "jobs"}


def status_of(ledger: Ledger, run: Path, unix_s: float, *, at_work: bool) -> Status:
    """Return the status of a run.

    Args:
        ledger: trials of the run.
        run: run directory.
        unix_s: current time.
        at_work: as for `core.trials.run_state.state_of`.
    """
    state = state_of(run, ledger, at_work=at_work)
    last = ledger.sessions[-1] if ledger.sessions else None
    last_s = last.last_at_s if last else 0.0
    # Clocks of two machines differ: an event that was read is in the past.
    now_s = last_s if state.is_over else max(last_s, unix_s - ledger.first_start_unix_s)
    progress = progress_of(ledger)
    before_s = sum(session.last_at_s - session.started_at_s for session in ledger.sessions[:-1])
    under_way = [trial for _, trial in sorted(ledger.under_way.items())]
    running = [_fold(ledger, trial, a, now_s) for trial in under_way for a in trial.running]
    ended, goes_on = ledger.ended, ledger.n_blocks > 0 and not state.is_over
    return Status(
        run=str(run),
        state=state,
        reason=ledger.ended_because,
        kind=_kind_of(ledger),
        figure=ledger.identity.figure_of_merit or "figure of merit",
        direction=ledger.direction,
        progress=progress,
        n_trials=ledger.n_by_state(),
        elapsed_s=before_s + (now_s - last.started_at_s if last else 0.0),
        left_s=max(0.0, progress.end_s - now_s) if goes_on and progress.end_s is not None else None,
        best=best_of(ledger),
        pareto=tuple(ledger.pareto.trials),
        curve=_curve(ledger, ended),
        running=running,
        ended=[_ended(trial, now_s) for trial in ended[: -N_ENDS - 1 : -1]],
        failures=[asdict(failure) for failure in failures(ledger.trials)],
        n_blocks=ledger.n_blocks,
        n_blocks_busy=0 if state.is_over else len({fold["block"] for fold in running}),
        block_utilization=block_utilization(ledger),
        lost=lost_of(ledger),
        losses=losses_text(ledger) if last else "",
        jobs=jobs_of(ledger, now_s),
    )


def _kind_of(ledger: Ledger) -> str:
    model = ledger.identity.model.name
    kind = "training" if ledger.is_training else f"{ledger.settings.hyper_opt} search".strip()
    return kind + f" of {model}" * bool(model)


# ---------------------------------------------------------------- progress


def progress_of(ledger: Ledger) -> Progress:
    """Return the progress of a run."""
    n_all = ledger.settings.plan.num_iterations or None
    if ledger.is_training and ledger.trials and (n_epochs := epochs_of(ledger, ledger.trials[-1])):
        return _progress_of_training(ledger, n_epochs)
    end_s = expected_end_s(ledger, n_all) if n_all is not None and ledger.sessions else None
    return Progress(unit="trial", n_done=ledger.n_ended, n_all=n_all, end_s=end_s)


def _progress_of_training(ledger: Ledger, n_epochs: int) -> Progress:
    trial, end_s = ledger.trials[-1], None
    n_done, n_all = epochs_reached(trial, n_epochs), n_epochs * ledger.identity.n_fold
    for assignment in trial.running:
        at_s = ledger.sessions[-1].last_at_s
        if (seconds := epoch_s(assignment, assignment.epoch, at_s)) is not None:
            end_s = at_s + seconds * (n_all - n_done)
    return Progress(unit="epoch", n_done=n_done, n_all=n_all, end_s=end_s)


def _curve(ledger: Ledger, ended: list[Trial]) -> tuple[float, ...]:
    if ledger.is_training and ledger.trials:
        curves = [*ledger.trials[-1].reports.values()]
        return tuple(curves[-1].values()) if curves else ()
    figures = [trial.figure_of_merit or 0.0 for trial in ended if trial.feasible]
    return tuple(accumulate(figures, max if ledger.direction == "max" else min))


# ---------------------------------------------------------------- trials


def _fold(ledger: Ledger, trial: Trial, assignment: Assignment, now_s: float) -> Row:
    reports = trial.reports.get(assignment.fold, {})
    return {
        **{name: getattr(assignment, name) for name in _OF_ASSIGNMENT},
        "n_epochs": epochs_of(ledger, trial),
        "figure_of_merit": reports[next(reversed(reports))] if reports else None,
        "running_s": now_s - assignment.assigned_at_s,
    }


def _ended(trial: Trial, now_s: float) -> Row:
    figure = trial.figure_so_far if trial.figure_of_merit is None else trial.figure_of_merit
    ago_s = now_s - (trial.ended_at_s or 0.0)
    about = {"trial": trial.number, "state": trial.standing, "reason": trial.reason}
    return about | {"figure_of_merit": figure, "ago_s": ago_s}
