"""Text about one trial: all that the journal knows of it, for `nnlo-opt show --trial`."""

from collections.abc import Sequence
from pathlib import Path

from nnlo_opt.reporting.lines import value_text
from nnlo_opt.reporting.results import last_metrics, time_s
from nnlo_opt.reporting.table import text_table, wrapped
from nnlo_opt.runtime.log import log_path
from nnlo_opt.trials import events as ev
from nnlo_opt.trials.trial import AssignmentEnd, Trial


def trial_page(run_directory: Path, events: Sequence[ev.Event], trial: Trial, width: int) -> str:
    """Return state, parameters, metrics, assignments, epochs, tracebacks and logs of a trial.

    Args:
        run_directory: directory of the run; its logs are named.
        events: all events of the run.
        trial: of the ledger of these events.
        width: most characters of a line.
    """
    numbers = {assignment.number for assignment in trial.assignments}
    own = [event for event in events if getattr(event, "assignment", None) in numbers]
    parts = [_head(trial, width), _pairs("Parameters", {name: value_text(v) for name, v in trial.point.items()})]
    metrics = last_metrics(trial) | trial.objectives
    parts.append(_pairs("Metrics", {name: f"{v:.6g}" for name, v in metrics.items() if name != "value"}))
    parts += [_assignments(trial, width), _epochs(trial, own, width)]
    for event in own:
        if isinstance(event, ev.AssignmentFailed):
            log = log_path(run_directory, event.world_rank)
            parts.append(f"Rank {event.world_rank} on {event.host} (`{log}`):\n{event.traceback}".rstrip())
    parts.append(f"Logs of all ranks: `{log_path(run_directory, 0).parent}`.")
    return "\n\n".join(filter(None, parts))


def _head(trial: Trial, width: int) -> str:
    figures = {"figure of merit": trial.figure_of_merit, "figure of merit so far": trial.figure_so_far}
    shown = [f"{name} {figure:.6g}" for name, figure in figures.items() if figure is not None][:1]
    seconds = time_s(trial)
    parts = [f"Trial {trial.number}: {trial.state}", *shown, *([] if seconds is None else [f"{seconds:.1f} s"])]
    return ", ".join(parts) + "." + (f"\n{wrapped(f'Reason: {trial.reason}', width)}" if trial.reason else "")


def _pairs(title: str, values: dict[str, str]) -> str:
    widest = max(map(len, values), default=0)
    return "\n".join([f"{title}:", *(f"  {name:{widest}}  {text}" for name, text in values.items())]) if values else ""


def _assignments(trial: Trial, width: int) -> str:
    rows = []
    for a in trial.assignments:
        figure = trial.reports.get(a.fold, {}).get(a.epoch)
        if a.end is AssignmentEnd.FINISHED:
            figure = trial.folds[a.fold].figure_of_merit
        cells = a.fold, a.attempt, a.block, a.n_ranks, round(a.assigned_at_s, 1), round(a.ended_at_s or 0.0, 1), a.epoch
        rows.append([*map(str, cells), "-" if figure is None else f"{figure:.6g}", a.end or "under way"])
    head = ["fold", "attempt", "block", "ranks", "from s", "to s", "epoch", "figure of merit", ""]
    return text_table("Assignments", head, rows, width=width) if rows else ""


def _epochs(trial: Trial, events: Sequence[ev.Event], width: int) -> str:
    """Return the figure of merit and the metrics after every epoch of every fold."""
    fold_of = {assignment.number: assignment.fold for assignment in trial.assignments}
    epochs = {(fold_of[e.assignment], e.epoch): e for e in events if isinstance(e, ev.EpochEnded)}
    names = [n for n in dict.fromkeys(n for event in epochs.values() for n in event.metrics) if n != "value"]
    rows = []
    for (fold, epoch), event in sorted(epochs.items()):
        figure = "-" if event.figure_of_merit is None else f"{event.figure_of_merit:.6g}"
        metrics = [f"{event.metrics[name]:.4f}" if name in event.metrics else "-" for name in names]
        rows.append([str(fold), str(epoch), figure, *metrics])
    return text_table("Epochs", ["fold", "epoch", "figure of merit", *names], rows, width=width) if rows else ""
