"""The table of trials that ends a search."""

import io

from rich import box
from rich.console import Console
from rich.table import Table

from nnlo_opt.report.lines import shortened, value_text
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.trial import Trial

#: a line under the head and nothing else, in characters that every terminal has
_HEAD_ONLY = box.Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)
#: longer searches show their best trials only; results.csv has all
MOST_ROWS = 40


def trials_table(ledger: Ledger, figure_name: str, width: int = 150) -> str:
    """The trials as a text table, in order of their numbers, the best one marked."""
    direction = str(ledger.identity.get("direction", "min"))
    best = ledger.best(direction)
    trials = ledger.trials
    title = "Trials"
    if len(trials) > MOST_ROWS:
        sign = -1.0 if direction == "max" else 1.0
        complete = [trial for trial in trials if trial.figure_of_merit is not None]
        trials = sorted(complete, key=lambda trial: sign * float(trial.figure_of_merit or 0.0))[:MOST_ROWS]
        title = f"The best {len(trials)} of {len(ledger.trials)} trials"
    names = list(dict.fromkeys(name for trial in trials for name in trial.point))
    table = Table(title=title, box=_HEAD_ONLY, title_justify="left", padding=(0, 1, 0, 0))
    for column in ("trial", figure_name, "epochs", "train s", *names):
        table.add_column(column, justify="right", overflow="fold")
    table.add_column("", overflow="fold")
    for trial in trials:
        values = [value_text(trial.point.get(name)) for name in names]
        state = "" if trial.state == "complete" else trial.state.value
        note = "best" if trial is best else shortened(trial.reason) or state
        table.add_row(str(trial.number), _figure(trial), *_effort(trial), *values, note)
    text = io.StringIO()
    Console(file=text, width=width, no_color=True, highlight=False, emoji=False, markup=False).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines())


def _figure(trial: Trial) -> str:
    if trial.figure_of_merit is None:
        return "-"
    spread = f" ± {trial.figure_of_merit_std:.4f}" if len(trial.folds) > 1 else ""
    return f"{trial.figure_of_merit:.6g}{spread}"


def _effort(trial: Trial) -> tuple[str, str]:
    if not trial.folds:
        return "-", "-"
    results = trial.folds.values()
    return str(max(r.n_epochs for r in results)), f"{sum(r.train_s for r in results):.1f}"
