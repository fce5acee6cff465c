"""Text tables of trials, printed when a search ends or by `nnlo-opt show`."""

import io
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from nnlo_opt.reporting.lines import shortened, value_text
from nnlo_opt.reporting.results import parameter_names
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.trial import Trial

#: box of rich with a line below the header and no other lines, in characters that every terminal has
_HEAD_ONLY = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
#: longest table; a longer search shows its best trials only, and results.csv holds all of them
MOST_ROWS = 40


def trials_table(ledger: Ledger, figure_name: str, width: int = 150) -> str:
    """Return the trials as a text table in the order of their numbers, with the best trial marked."""
    direction = str(ledger.identity.get("direction", "min"))
    best = ledger.best(direction)
    trials = ledger.trials
    title = "Trials"
    if len(trials) > MOST_ROWS:
        sign = -1.0 if direction == "max" else 1.0
        complete = [trial for trial in trials if trial.figure_of_merit is not None]
        trials = sorted(complete, key=lambda trial: sign * float(trial.figure_of_merit or 0.0))[:MOST_ROWS]
        in_what = f" in {ledger.objectives[0].name}" if ledger.objectives else ""
        title = f"The best {len(trials)} of {len(ledger.trials)} trials{in_what}"
    return _table(ledger, trials, title, figure_name, best, width)


def pareto_table(ledger: Ledger, width: int = 150) -> str:
    """Return the Pareto set of several objectives as a text table, from best to worst in the first objective."""
    trials = [ledger.trials[number] for number in ledger.pareto.trials]
    shown = trials[:MOST_ROWS]
    what = ", ".join(map(str, ledger.objectives))
    first = f"; the first {MOST_ROWS} of them" * (len(trials) > MOST_ROWS)
    title = (
        f"Pareto set of {what}: {len(trials)} trial{'s' * (len(trials) != 1)} that no other trial beats in all{first}"
    )
    return _table(ledger, shown, title, "", None, width)


def _table(ledger: Ledger, trials: list[Trial], title: str, figure_name: str, best: Trial | None, width: int) -> str:
    objectives = [objective.name for objective in ledger.objectives]
    names = [name for name in parameter_names(ledger) if any(name in trial.point for trial in trials)]
    rows = []
    for trial in trials:
        values = [value_text(trial.point[name]) if name in trial.point else "-" for name in names]
        state = "" if trial.state == "complete" else trial.state.value
        note = "best" if trial is best else shortened(trial.reason) or state
        if best is not None and ledger.objectives and trial.number in ledger.pareto:
            note = "Pareto"
        figures = [_objective(trial, name) for name in objectives] or [_figure(trial)]
        rows.append([str(trial.number), *figures, *_effort(trial), *values, note])
    head = ["trial", *(objectives or [figure_name]), "epochs", "train s", *names, ""]
    return text_table(title, head, rows, width=width)


def text_table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], *, left: bool = False, width: int = 150
) -> str:
    """Return rows under a header as text of at most `width` characters.

    Columns are aligned to the right, unless `left` is set or the column has no header.
    """
    table = Table(title=title, box=_HEAD_ONLY, title_justify="left", padding=(0, 1, 0, 0))
    for column in columns:
        table.add_column(column, justify="left" if left or not column else "right", overflow="fold")
    for row in rows:
        table.add_row(*row)
    text = io.StringIO()
    Console(file=text, width=width, no_color=True, highlight=False, emoji=False, markup=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().rstrip().splitlines())


def _objective(trial: Trial, name: str) -> str:
    if name not in trial.objectives:
        return "-"
    spread = f" ± {trial.objectives_std[name]:.4g}" if len(trial.folds) > 1 else ""
    return f"{trial.objectives[name]:.6g}{spread}"


def _figure(trial: Trial) -> str:
    if trial.figure_of_merit is None:
        return "-"
    spread = f" ± {trial.figure_of_merit_std:.4f}" if len(trial.folds) > 1 else ""
    return f"{trial.figure_of_merit:.6g}{spread}"


def _effort(trial: Trial) -> tuple[str, str]:
    if not trial.folds:
        epochs = max((assignment.epoch for assignment in trial.assignments), default=0)
        return str(epochs) if epochs else "-", "-"
    results = trial.folds.values()
    return str(max(r.n_epochs for r in results)), f"{sum(r.train_s for r in results):.1f}"
