"""Converts messages, trials and lost ranks to events, orders and reports to the search: pure functions.

`--max-attempts`: the loss of ranks that train a fold counts against its trial if one of them is known to have died,
because the trial may have killed it. It counts whether the assignment is lost or continues with the remaining ranks:
otherwise a trial could kill all ranks of a block, one after another. If a job ended by itself for an unknown reason,
the running attempts count if that start achieved nothing: otherwise the restarts would never end. Other losses (the job
was ended on purpose, a rank of another team died, a node crashed in a search that makes progress) do not count. An
epoch that no earlier attempt has reached resets the count, so that a trial that needs many starts is not given up. A
script killed by a signal counts like lost ranks.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.coordinator.instructions import LastEnd, SearchPlan, Tell
from nnlo_opt.core.search.base import TrialProgress
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import mean_and_std
from nnlo_opt.core.trials.objectives import Objective, losses
from nnlo_opt.core.trials.trial import Assignment, Loss, Trial, TrialState, UnrecordedFold

# fmt: off
#: event that records a message of a master by a copy of its fields
_EVENT_OF: dict[type[msg.Message], type[ev.Event]] = {
    msg.FoldStarted: ev.FoldBegan, msg.EpochReported: ev.EpochEnded, msg.FoldFailed: ev.AssignmentFailed,
    msg.FoldFinished: ev.AssignmentFinished, msg.FoldPaused: ev.AssignmentPaused,
}
# fmt: on
#: names of the fields that these events copy, all except the time; cached
_FIELDS = {kind: tuple(name for name in kind.__struct_fields__ if name != "time_s") for kind in _EVENT_OF.values()}


# ---------------------------------------------------------------- messages of masters


def order_of(assignment: Assignment, trial: Trial, pause_epochs: list[int], *, waits: bool) -> msg.RunFold:
    """Return the order that begins an assignment; `pause_epochs`, `waits`: as in RunFold."""
    before = [a.identity for a in trial.assignments if a.fold == assignment.fold and a is not assignment]
    return msg.RunFold(
        assignment=assignment.number,
        trial=trial.number,
        fold=assignment.fold,
        attempt=assignment.attempt,
        point=trial.point,
        waits_for_decision=waits,
        pause_epochs=pause_epochs,
        first=trial.first_epochs.get(assignment.fold, -1),
        term=assignment.term,
        before=before if assignment.term else [],
    )


def event_of(message: msg.Message, assignment: Assignment, trial: Trial, now_s: float) -> ev.Event:
    """Return the event that records a master's message about its assignment.

    No result is recorded for an ended trial: its folds are stopped. A fold that failed by chance is lost.

    Raises:
        ProtocolError: no master sends this type of message.
    """
    has_ended = trial.state.ended and isinstance(message, msg.FoldFinished | msg.FoldPaused)
    if has_ended or isinstance(message, msg.FoldStopped):
        return ev.AssignmentStopped(time_s=now_s, assignment=assignment.number, reason=trial.reason)
    if isinstance(message, msg.FoldFailed) and message.by_chance:
        number, reason, counts = assignment.number, message.reason, not trial.state.ended
        return ev.AssignmentLost(time_s=now_s, assignment=number, reason=reason, counts=counts, of_script=True)
    kind = _EVENT_OF.get(type(message))
    if kind is None:
        raise ProtocolError(f"A master does not send {type(message).__name__} to the coordinator.")
    return kind(time_s=now_s, **{name: getattr(message, name) for name in _FIELDS[kind]})


def recorded_late(fold: UnrecordedFold, assignment: Assignment, trial: Trial, now_s: float) -> ev.Event:
    """Return the event for a fold that finished after the coordinator died; see `event_of`."""
    message = msg.FoldFinished(assignment=fold.assignment, reason=fold.reason, **asdict(fold.result))
    return event_of(message, assignment, trial, now_s)


# ---------------------------------------------------------------- trials


def completion(trial: Trial, plan: SearchPlan, now_s: float) -> ev.TrialCompleted:
    """Return the end of a trial whose folds are all finished, with means and standard deviations over the folds."""
    folds = [trial.folds[fold] for fold in sorted(trial.folds)]
    mean, std = mean_and_std([fold.figure_of_merit for fold in folds])
    names = [objective.name for objective in plan.objectives]
    spreads = {name: mean_and_std([fold.objectives[name] for fold in folds]) for name in names}
    return ev.TrialCompleted(
        time_s=now_s,
        trial=trial.number,
        figure_of_merit=mean,
        figure_of_merit_std=std,
        objectives={name: spread[0] for name, spread in spreads.items()},
        objectives_std={name: spread[1] for name, spread in spreads.items()},
    )


def report_of(trial: Trial, plan: SearchPlan, *, taken: bool = False) -> Tell:
    """Return the report of a trial to the search.

    A paused trial is reported as pruned with its figure so far, an infeasible one as failed with its figure.

    Args:
        taken: True if a paused trial is about to resume.
    """
    paused = TrialState.PENDING if trial.figure_so_far is None else TrialState.PRUNED
    state = trial.state if trial.state.ended else paused
    return Tell(
        trial=trial.number,
        point=trial.point,
        state=TrialState.FAILED if trial.feasible is False else state,
        value={TrialState.COMPLETE: trial.figure_of_merit, TrialState.PRUNED: trial.figure_so_far}.get(state),
        std=trial.standard_error,
        curve=() if plan.pruning is None else curve_of(trial, plan.n_fold),
        progress=None if plan.pruning is None else progress_of(trial, waits=not taken),
        losses=trial_losses(trial, plan.objectives, plan.direction) if plan.objectives else None,
        outcomes=trial.finite_outcomes,
    )


def curve_of(trial: Trial, n_fold: int) -> tuple[tuple[int, float], ...]:
    """Return (epochs, mean over the folds) up to the last epoch that all folds have reported."""
    folds = [trial.reports.get(fold, {}) for fold in range(n_fold)]
    epochs = [epoch for epoch in folds[0] if all(epoch in fold for fold in folds)]
    return tuple((epoch, mean_and_std([fold[epoch] for fold in folds])[0]) for epoch in epochs)


def progress_of(trial: Trial, *, waits: bool) -> TrialProgress:
    """Return the progress and cost of a trial; `waits`: True if it is paused and may resume."""
    begun = [a for a in trial.assignments if a.started_at_s is not None and a.ended_at_s is not None]
    return TrialProgress(
        waits=waits and trial.state is TrialState.PAUSED,
        n_rungs=trial.n_rungs,
        n_epochs=max(1, sum(a.epoch - a.first_epoch for a in begun)),
        train_s=math.fsum((a.ended_at_s or 0.0) - (a.started_at_s or 0.0) for a in begun),
        start_s=math.fsum((a.started_at_s or 0.0) - a.assigned_at_s for a in begun) / max(1, len(begun)),
    )


def trial_losses(trial: Trial, objectives: Sequence[Objective], direction: str) -> tuple[float, ...] | None:
    """Return the losses of a trial, one per objective; None unless it is complete."""
    if trial.figure_of_merit is None:
        return None
    if objectives:
        return losses(objectives, trial.objectives)
    return (-trial.figure_of_merit if direction == "max" else trial.figure_of_merit,)


# ---------------------------------------------------------------- losses of ranks


def loss_of(last_end: LastEnd, assignment: Assignment, *, fruitless: bool) -> tuple[str, bool]:
    """Return why an assignment left open by the previous start was lost, and whether that counts.

    Args:
        last_end: known causes of the end of that start.
        assignment: assignment that was running when that start ended.
        fruitless: True if that start achieved nothing lasting.
    """
    if how := last_end.died.get(assignment.team):
        return how, True
    if last_end.unexplained and fruitless:
        return "the job died for an unknown reason before any progress", True
    return "the run was ended", False


def losses_without_progress(trial: Trial, fold: int) -> list[Loss]:
    """Return the losses since the fold last reached a new epoch."""
    found: list[Loss] = []
    furthest = 0
    for assignment in (attempt for attempt in trial.assignments if attempt.fold == fold):
        for loss in assignment.losses:
            if loss.epoch > furthest:
                found, furthest = [], loss.epoch
            found.append(loss)
        if assignment.epoch > furthest:
            found, furthest = [], assignment.epoch
    return found


def fold_to_give_up(trial: Trial, max_attempts: int) -> tuple[int, str] | None:
    """Return a fold with too many lost attempts, and the reason why its trial fails; None if there is none."""
    for fold in sorted({a.fold for a in trial.assignments} - trial.folds.keys()):
        found = losses_without_progress(trial, fold)
        if len(found) >= max_attempts:
            times = "once" if len(found) == 1 else f"{len(found)} times in a row"
            whose = "ranks that trained it were" if not found[-1].of_script else "its script was"
            reason = f"{whose} lost {times} (`{spelled('max_attempts')}`); the last time: {found[-1].reason}"
            return fold, reason
    return None
