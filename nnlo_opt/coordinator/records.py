"""What is written and told of masters' messages and of trials: pure translations, no decisions."""

from dataclasses import fields

from nnlo_opt.comm import messages as msg
from nnlo_opt.coordinator.budget import trial_losses
from nnlo_opt.coordinator.instructions import SearchPlan, Tell
from nnlo_opt.errors import ProtocolError
from nnlo_opt.trials import events as ev
from nnlo_opt.trials.ledger import mean_and_std
from nnlo_opt.trials.trial import Assignment, Trial, TrialState, UnrecordedFold

#: fields of the events that are written of messages, but the time; looked up once
_FIELDS: dict[type[ev.Event], tuple[str, ...]] = {
    kind: tuple(f.name for f in fields(kind) if f.name != "time_s")
    for kind in (ev.FoldBegan, ev.EpochEnded, ev.AssignmentFailed, ev.AssignmentFinished, ev.AssignmentPaused)
}


def event_of(message: msg.Message, assignment: Assignment, trial: Trial, now_s: float) -> ev.Event:
    """What the journal says of a master's message about its assignment; ProtocolError for one no master sends.

    Of a trial that has ended no result is written any more: its folds are stopped.
    """
    match message:
        case msg.FoldStarted():
            return _copied(message, ev.FoldBegan, now_s)
        case msg.EpochReported():
            return _copied(message, ev.EpochEnded, now_s)
        case msg.FoldFailed():
            return _copied(message, ev.AssignmentFailed, now_s)
        case msg.FoldFinished() if not trial.state.ended:
            return _copied(message, ev.AssignmentFinished, now_s)
        case msg.FoldPaused() if not trial.state.ended:
            return _copied(message, ev.AssignmentPaused, now_s)
        case msg.FoldFinished() | msg.FoldPaused() | msg.FoldStopped():
            return ev.AssignmentStopped(time_s=now_s, assignment=assignment.number, reason=trial.reason)
    raise ProtocolError(f"{type(message).__name__} is no message a master sends to the coordinator.")


def _copied(message: msg.Message, kind: type[ev.Event], now_s: float) -> ev.Event:
    """An event of `kind` with the fields of a message, which has all of them but the time."""
    return kind(time_s=now_s, **{name: getattr(message, name) for name in _FIELDS[kind]})


def recorded_late(fold: UnrecordedFold, assignment: Assignment, trial: Trial, now_s: float) -> ev.Event:
    """What the journal says of a fold that had finished when the coordinator died; as `event_of`."""
    message = msg.FoldFinished(
        assignment=fold.assignment,
        figure_of_merit=fold.result.figure_of_merit,
        metrics=fold.result.metrics,
        n_epochs=fold.result.n_epochs,
        train_s=fold.result.train_s,
        reason=fold.reason,
        objectives=fold.result.objectives,
    )
    return event_of(message, assignment, trial, now_s)


def completion(trial: Trial, plan: SearchPlan, now_s: float) -> ev.TrialCompleted:
    """The end of a trial all of whose folds are finished: means and spreads over them."""
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


def told(trial: Trial, plan: SearchPlan) -> Tell:
    """What the search is told of a trial; one that is paused as one that was pruned, with its figure so far."""
    states = {TrialState.COMPLETE: "complete", TrialState.FAILED: "failed", TrialState.PRUNED: "pruned"}
    state = states.get(trial.state, "pending" if trial.figure_so_far is None else "pruned")
    return Tell(
        trial=trial.number,
        point=trial.point,
        state=state,
        value={"complete": trial.figure_of_merit, "pruned": trial.figure_so_far}.get(state),
        std=trial.standard_error,
        losses=trial_losses(trial, plan.objectives, plan.direction) if plan.objectives else None,
    )
