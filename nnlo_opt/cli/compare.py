"""`nnlo-opt compare`: prints the differences of runs, in their settings as in their results."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nnlo_opt.cli.arguments import Parser, checked_run, run_named
from nnlo_opt.coordinator.instructions import searched_s
from nnlo_opt.errors import ConfigurationError
from nnlo_opt.reporting.lines import duration, value_text
from nnlo_opt.reporting.results import read_ledger, summarise
from nnlo_opt.reporting.table import text_table, wrapped
from nnlo_opt.reporting.terminal import line_width
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.run_lock import may_be_at_work
from nnlo_opt.trials.run_state import state_of

#: longest value in a table, in characters
_MOST_CHARACTERS = 60
#: settings that stand in sections of their own, or follow from others
_ELSEWHERE = {"command_line", "versions", "search_space", "figure_of_merit", "objectives"}


def main(parser: Parser, argv: Sequence[str]) -> None:
    """Print the differences between runs: results, time to a common figure of merit, settings, search spaces, versions,
    commands.
    """
    parser.add_argument("run", type=run_named, nargs="+", metavar="RUN_DIRECTORY", help="two runs or more")
    runs: list[Path] = [checked_run(run) for run in parser.given(argv)["run"]]
    if len(runs) < 2:
        raise ConfigurationError(
            f"`nnlo-opt compare` needs two runs or more. Received: `{runs[0]}` alone; add another."
        )
    at_work, ledgers = [may_be_at_work(run) for run in runs], [read_ledger(run) for run in runs]
    states = [state_of(run, ledger, at_work=at) for run, ledger, at in zip(runs, ledgers, at_work, strict=True)]
    if empty := [str(run) for run, ledger in zip(runs, ledgers, strict=True) if not ledger.sessions]:
        raise ConfigurationError(f"Runs must have begun. Received: `{empty[0]}`, whose journal is empty; leave it out.")
    names, width = [run.resolve().name for run in runs], line_width()
    names = names if len({*names}) == len(names) else [str(run) for run in runs]
    parts = {
        "Results": _results(states, ledgers),
        "Settings that differ": _differing(ledgers, _settings),
        "Search spaces: parameters that differ": _differing(ledgers, _parameters),
        "Versions that differ": _differing(ledgers, lambda ledger: ledger.settings.versions),
    }
    for title, rows in parts.items():
        if rows:
            print(text_table(f"{title}:", ["", *names], rows, left=True, width=width), end="\n\n")
    print("Commands:")
    for name, ledger in zip(names, ledgers, strict=True):
        print(wrapped(f"{name}: {shlex.join(ledger.settings.command_line or ['unknown'])}", width))


def _results(states: Sequence[str], ledgers: Sequence[Ledger]) -> list[list[str]]:
    summaries = [summarise(ledger) for ledger in ledgers]
    figures = [f"{summary['figure_of_merit']}, {summary['direction']}" for summary in summaries]
    bests = [None if summary["best"] is None else summary["best"]["figure_of_merit"] for summary in summaries]
    rows = [
        ["state", *states],
        ["figure of merit", *figures],
        ["best", *("-" if best is None else f"{best:.6g}" for best in bests)],
        ["best trial", *("-" if s["best"] is None else str(s["best"]["trial"]) for s in summaries)],
        *([state, *(str(s["n_trials"][state]) for s in summaries)] for state in summaries[0]["n_trials"]),
        ["time", *(duration(summary["wall_s"]) for summary in summaries)],
        ["block utilization", *(f"{s['block_utilization'] or 0:.0%}" for s in summaries)],
    ]
    known = [best for best in bests if best is not None]
    if len({*figures}) == 1 and len(known) == len(bests):
        # The worst of the bests is the best figure that all runs have reached.
        common = min(known) if summaries[0]["direction"] == "max" else max(known)
        reached = [_reached(ledger, common) for ledger in ledgers]
        rows.append([f"time to {common:.6g}", *(duration(seconds) for seconds, _ in reached)])
        rows.append([f"trials to {common:.6g}", *(str(n) for _, n in reached)])
    return [row for row in rows if {*row[1:]} != {"0"}]


def _reached(ledger: Ledger, figure: float) -> tuple[float, int]:
    """Return the seconds of searching, and the number of ended trials, until a figure of merit was reached."""
    sign = ledger.sign
    for n, trial in enumerate(ledger.ended, 1):
        if trial.figure_of_merit is not None and sign * trial.figure_of_merit <= sign * figure:
            at_s = trial.ended_at_s or 0.0
            return searched_s([s for s in ledger.sessions if s.started_at_s <= at_s], at_s), n
    raise AssertionError("the best trial has reached it")


def _settings(ledger: Ledger) -> dict[str, Any]:
    """Return the settings of a run by dotted names."""
    settings, identity = ledger.settings, ledger.identity.plain
    plan = {name: value for name, value in settings.plan.plain.items() if name not in identity}
    found = {**settings.plain, "plan": plan, **identity, "n_blocks": ledger.sessions[-1].n_blocks}
    return _flat({name: value for name, value in found.items() if name not in _ELSEWHERE})


def _parameters(ledger: Ledger) -> dict[str, Any]:
    return {parameter.name: {**parameter.plain, "name": None} for parameter in ledger.identity.parameters}


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in values.items():
        flat |= _flat(value, f"{before}{name}.") if isinstance(value, dict) else {before + name: value}
    return flat


def _differing(ledgers: Sequence[Ledger], of: Callable[[Ledger], Mapping[str, Any]]) -> list[list[str]]:
    """Return a row for each name whose values differ: the name, then a text for each run."""
    found = [of(ledger) for ledger in ledgers]
    rows = []
    for name in dict.fromkeys(name for values in found for name in values):
        values = [known.get(name) for known in found]
        if any(value != values[0] for value in values):
            rows.append([name, *map(_text, values)])
    return rows


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, dict):
        return " ".join(f"{name} {_text(item)}" for name, item in value.items() if item not in (None, [], {}))
    text = json.dumps(value) if isinstance(value, list) else value_text(value)
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"
