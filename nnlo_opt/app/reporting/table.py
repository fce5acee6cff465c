"""Text tables of trials, printed at the end of a search and by `nnlo-opt show`."""

import io
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from nnlo_opt.app.analysis.frames import last_metrics, parameter_names, time_s
from nnlo_opt.app.reporting.terminal import WIDE
from nnlo_opt.app.reporting.words import counted, for_terminal, value_text
from nnlo_opt.core.base.logs import log_path
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import AssignmentEnd, Trial, failures

#: box of rich with only a line below the header, in ASCII
_HEAD_ONLY = "    \n    \n -- \n    \n    \n    \n    \n    \n"
#: most rows unless all trials are requested; a longer search shows only its best trials
MOST_ROWS = 40
#: most reasons of failures below a table, and most trials listed for each
_MOST_REASONS, _MOST_NAMED = 5, 8


def trials_table(ledger: Ledger, width: int = WIDE, trials: Sequence[Trial] | None = None) -> str:
    """Return trials as a text table with the best one marked, and the reasons of failures below it.

    Args:
        ledger: all trials.
        width: most characters of a line; parameters that do not fit are listed below the table, then objectives except
            the first.
        trials: trials to show, in order; None for all by number, or the best ones of a long search.
    """
    best = ledger.best()
    if trials is None:
        trials = ledger.trials if len(ledger.trials) <= MOST_ROWS else ranked(ledger)[:MOST_ROWS]
    title = "Trials"
    if len(trials) < len(ledger.trials) and len(trials) > 1:
        in_what = f" in {ledger.objectives[0].name}" if ledger.objectives else ""
        title = f"The best {len(trials)} of {counted(len(ledger.trials), 'trial')}{in_what}"
    if any(trial.figure_of_merit is None and trial.figure_so_far is not None for trial in trials):
        title += " (in parentheses: figure of merit so far)"
    parts = [_table(ledger, trials, title, best, width), _reasons(trials, width)]
    return "\n\n".join(filter(None, parts))


def ranked(ledger: Ledger) -> list[Trial]:
    """Return all trials: feasible ones, best first, then infeasible ones, then others by their figure so far."""

    def key(trial: Trial) -> tuple[int, float, int]:
        figures = trial.figure_of_merit if trial.feasible else None, trial.figure_of_merit, trial.figure_so_far
        place = next((i for i, figure in enumerate(figures) if figure is not None), len(figures))
        return place, ledger.sign * float((*figures, 0.0)[place] or 0.0), trial.number

    return sorted(ledger.trials, key=key)


def pareto_table(ledger: Ledger, width: int = WIDE) -> str:
    """Return the Pareto set as a text table, sorted by the first objective, best first."""
    trials = [ledger.trials[number] for number in ledger.pareto.trials]
    what = ", ".join(map(str, ledger.objectives))
    first = f"; the first {MOST_ROWS} of them" * (len(trials) > MOST_ROWS)
    title = f"Pareto set of {what}: {counted(len(trials), 'trial')} that no other trial beats in all of them{first}"
    return _table(ledger, trials[:MOST_ROWS], title, None, width)


def _table(ledger: Ledger, trials: Sequence[Trial], title: str, best: Trial | None, width: int) -> str:
    objectives = [objective.name for objective in ledger.objectives]
    names = [name for name in parameter_names(ledger) if any(name in trial.point for trial in trials)]
    rows = []
    for trial in trials:
        values = [value_text(trial.point[name]) if name in trial.point else "-" for name in names]
        note = "best" if trial is best else "" if trial.feasible else trial.standing
        if trial is ledger.best_expected:
            note = f"{note}, expected too" if note else "best expected"
        if best is not None and ledger.objectives and trial.number in ledger.pareto:
            note = "Pareto"
        figures = [_objective(trial, name) for name in objectives] or [_figure(trial)]
        rows.append([str(trial.number), *figures, *_effort(trial), *values, note])
    head = ["trial", *(objectives or ["figure of merit"]), "epochs", "train s", *names, ""]
    place = 1 + max(1, len(objectives))
    if {"0"} <= {row[place] for row in rows} <= {"0", "-"}:  # objectives that report no epochs
        for cells in (head, *rows):
            del cells[place]
    spare = range(len(head) - 1 - len(names), len(head) - 1), range(2, place)
    rest = "`nnlo-opt show RUN --trial N` prints all of a trial."
    return text_table(title, head, rows, width=width, spare=Spare(spare, rest))


def _reasons(trials: Sequence[Trial], width: int) -> str:
    """Return every reason of failures once, with the numbers of its trials."""
    found, lines = failures(trials), []
    for failure in found[:_MOST_REASONS]:
        numbers, reason = failure.trials, for_terminal(" ".join(failure.reason.split()))
        shown = ", ".join(map(str, numbers[:_MOST_NAMED])) + ", …" * (len(numbers) > _MOST_NAMED)
        lines.append(wrapped(f"Trial{'s' * (len(numbers) > 1)} {shown} failed: {reason}", width))
    if len(found) > _MOST_REASONS:
        lines.append(f"{counted(len(found) - _MOST_REASONS, 'further reason')}: `nnlo-opt show RUN --trial N`.")
    return "\n".join(lines)


def wrapped(text: str, width: int) -> str:
    """Wrap text to lines of at most `width` characters, without splitting words."""
    return textwrap.fill(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


class Spare(NamedTuple):
    """Columns of a table that may be omitted if they do not fit."""

    #: groups of columns, in the order in which they are omitted
    groups: Sequence[Sequence[int]]
    #: remark on where to find omitted columns
    rest: str


_NOTHING = Spare((), "")


def text_table(
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: bool = False,
    width: int = WIDE,
    spare: Spare = _NOTHING,
) -> str:
    """Return rows under a header as text of at most `width` characters, without cutting numbers.

    Columns are right-aligned, unless `left` is set or the column has no header. If the table is too wide, columns are
    omitted and listed below it; if no more can be omitted, the lines are longer.

    Args:
        title: title above the table, or empty.
        columns: headers.
        rows: cells.
        left: align all columns to the left.
        width: most characters of a line.
        spare: columns that may be omitted.
    """
    from rich.box import Box
    from rich.console import Console
    from rich.table import Table

    cells = [[row[i] for row in rows] for i in range(len(columns))]
    # Text may be wrapped between words, but a figure and its spread, or a list, may not.
    texts = [any(" " in cell and "±" not in cell and cell[0] != "[" for cell in column) for column in cells]
    words = [[w for cell in cells[i] for w in (cell.split() if texts[i] else [cell])] for i in range(len(columns))]
    least = [max(map(len, column), default=0) for column in words]
    full = [max(map(len, [head, *column])) for head, column in zip(columns, cells, strict=True)]
    heads, kept, gap = [*columns], [*range(len(columns))], 2
    if sum(full) + gap * len(full) > width:
        heads, gap = [_folded(head, max(n, 8)) for head, n in zip(columns, least, strict=True)], 1
    least = [max(n, *map(len, head.split("\n"))) for n, head in zip(least, heads, strict=True)]
    for group in spare.groups:
        while sum(least[i] + gap for i in kept) > width and (spared := [i for i in kept if i in group]):
            # Columns that are equal in all rows are omitted first.
            kept.remove(max(spared, key=lambda i: (len(set(cells[i])) == 1, i)))
    needed = max(width, sum(least[i] + gap for i in kept))
    table = Table(box=Box(_HEAD_ONLY, ascii=True), show_edge=False, padding=(0, gap - 1, 0, 0))
    for i in kept:
        aligned: Literal["left", "right"] = "left" if left or not columns[i] else "right"
        table.add_column(heads[i], justify=aligned, overflow="fold", no_wrap=not texts[i])
    for row in rows:
        table.add_row(*(row[i] for i in kept))
    text = io.StringIO()
    Console(file=text, width=needed, no_color=True, highlight=False, emoji=False, markup=False).print(table)
    lines = [wrapped(title, width), ""] * bool(title) + [
        line.rstrip() for line in text.getvalue().rstrip().splitlines()
    ]
    if left_out := ", ".join(column for i, column in enumerate(columns) if i not in kept):
        lines.append(wrapped(f"Left out at {width} columns: {left_out}. {spare.rest}", width))
    return "\n".join(lines)


def _folded(head: str, width: int) -> str:
    """Wrap the header of a column to `width` characters, or to its longest word."""
    lines = [""]
    for word in re.split(r"(?<=[._ ])", head):
        if lines[-1] and len((lines[-1] + word).rstrip()) > width:
            lines.append("")
        lines[-1] += word
    return "\n".join(line.rstrip() for line in lines)


def _objective(trial: Trial, name: str) -> str:
    if name not in trial.objectives:
        return "-"
    spread = f" ± {trial.objectives_std[name]:.4g}" if len(trial.folds) > 1 else ""
    return f"{trial.objectives[name]:.6g}{spread}"


def _figure(trial: Trial) -> str:
    if trial.figure_of_merit is None:
        return "-" if trial.figure_so_far is None else f"({trial.figure_so_far:.6g})"
    spread = f" ± {trial.figure_of_merit_std:.4f}" if len(trial.folds) > 1 else ""
    return f"{trial.figure_of_merit:.6g}{spread}"


def _effort(trial: Trial) -> tuple[str, str]:
    """Return epochs and seconds of a trial: of its training if all folds have finished, else of its blocks so far."""
    if trial.figure_of_merit is not None and trial.folds:
        results = trial.folds.values()
        return str(max(r.n_epochs for r in results)), f"{sum(r.train_s for r in results):.1f}"
    epochs, seconds = max((a.epoch for a in trial.assignments), default=0), time_s(trial)
    return str(epochs) if epochs else "-", "-" if seconds is None else f"{seconds:.1f}"


# ---------------------------------------------------------------- one trial


def trial_page(run_directory: Path, events: Sequence[ev.Event], trial: Trial, width: int) -> str:
    """Return state, parameters, metrics, assignments, epochs, tracebacks and logs of a trial.

    Args:
        run_directory: directory of the run, for the paths of logs.
        events: all events of the run.
        trial: trial in the ledger of these events.
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
    state = f"{trial.standing} ({trial.origin})" if trial.origin else trial.standing
    parts = [f"Trial {trial.number}: {state}", *shown, *([] if seconds is None else [f"{seconds:.1f} s"])]
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
    heads = ["fold", "epoch", "figure of merit", *names]
    spare = Spare([range(3, len(heads))], "`nnlo-opt export RUN --to csv` writes all of them.")
    return text_table("Epochs", heads, rows, width=width, spare=spare) if rows else ""
