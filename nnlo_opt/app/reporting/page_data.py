"""Data of a run's page: plain lists from which the page's script draws the figures.

Times are in seconds since the first start. Non-finite numbers are None, because JSON has none.
"""

import json
import math
import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from nnlo_opt.app.analysis.frames import parameter_names, row_of, time_s
from nnlo_opt.app.reporting.jobs import jobs_of
from nnlo_opt.app.reporting.results import summarise
from nnlo_opt.app.reporting.words import counted, outcome, value_text
from nnlo_opt.core.base.errors import ConfigurationError, NnloError
from nnlo_opt.core.base.files import parse_object
from nnlo_opt.core.base.safe_path import MOST_BYTES
from nnlo_opt.core.space.parameters import Categorical, Constant, Ordinal
from nnlo_opt.core.space.space import Space, described
from nnlo_opt.core.space.values import Value, is_number, text
from nnlo_opt.core.trials.attempts import result_directory
from nnlo_opt.core.trials.checkpoint import HISTORY_NAME
from nnlo_opt.core.trials.identity import DataFiles
from nnlo_opt.core.trials.ledger import Ledger, Session
from nnlo_opt.core.trials.trial import Trial, TrialState, failures
from nnlo_opt.core.update_rules.staleness import StalenessStatistics

#: complete trials needed to show effects
_LEAST = 5
#: most points of all learning curves together; longer curves are thinned
MOST_POINTS = 40_000
#: most histories of folds read for the staleness of updates
MOST_HISTORIES = 300
#: longest reason shown, in characters
MOST_CHARACTERS = 4000


def page_data(ledger: Ledger, run_directory: Path) -> dict[str, Any]:
    """Return everything that the page shows, as plain JSON data.

    Args:
        ledger: all trials of the run.
        run_directory: directory of the run, with the histories of its folds.
    """
    space, several = space_of(ledger), [trial for trial in ledger.trials if len(trial.folds) > 1]
    data = {
        "name": run_directory.resolve().name,
        "state": _state(ledger),
        "summary": summarise(ledger),
        "objectives": [asdict(objective) for objective in ledger.objectives],
        "parameters": [axis_of(name, ledger.trials, space) for name in parameter_names(ledger)],
        "failures": [[failure.reason[:MOST_CHARACTERS], failure.trials] for failure in failures(ledger.trials)],
        "trials": _columns([_trial(trial, ledger) for trial in ledger.trials]),
        "curves": curves_of(ledger.trials),
        "folds": [[t.number, fold, r.figure_of_merit] for t in several for fold, r in sorted(t.folds.items())],
        "assignments": spans_of(ledger),
        "starts": [_start(session) for session in ledger.sessions],
        "staleness": _staleness(ledger, run_directory),
        "effects": effects_data(ledger, space),
        "again": _again(ledger, space),
        **({"jobs": jobs_of(ledger, ledger.sessions[-1].last_at_s)} if ledger.jobs else {}),
    }
    plain: dict[str, Any] = _finite(data)
    return plain


def space_of(ledger: Ledger) -> Space | None:
    """Return the search space of a run; None for a training, and for a space of a later version."""
    try:
        return ledger.identity.space
    except (ConfigurationError, LookupError, TypeError):
        return None


def _finite(value: Any) -> Any:
    """Return plain data with None for every number that is not finite."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _columns(rows: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    return {key: [row[key] for row in rows] for key in rows[0]} if rows else {}


def _short(value: float) -> float:
    """Round a number to six significant digits, enough for a figure."""
    return float(f"{value:.6g}")


# ---------------------------------------------------------------- head


def _state(ledger: Ledger) -> dict[str, Any]:
    began = datetime.fromtimestamp(ledger.first_start_unix_s, UTC)
    return {
        "complete": ledger.complete,
        "reason": ledger.ended_because,
        "outcome": outcome(ledger),
        "began": began.strftime("%d %B %Y, %H:%M UTC").lstrip("0") if ledger.sessions else "",
        "model": ledger.identity.model.name,
        "hyper_opt": ledger.settings.hyper_opt,
        "is_search": not ledger.is_training,
    }


def _start(session: Session) -> dict[str, Any]:
    lost = {str(block): ranks for block, ranks in session.lost_ranks.items()}
    times = {"at_s": session.started_at_s, "last_s": session.last_at_s}
    return times | {"n_blocks": session.n_blocks, "lost": lost}


def _again(ledger: Ledger, space: Space | None) -> dict[str, Any]:
    """Return what is needed to run the search again."""
    identity, settings = ledger.identity, ledger.settings
    data = identity.data or DataFiles()
    facts = {
        "seed": identity.seed,
        "search algorithm": settings.hyper_opt or None,
        "chosen by auto, because": settings.hyper_opt_because or None,
        "blocks of the last start": None if ledger.is_shared or not ledger.sessions else ledger.n_blocks,
        "ranks of a block": settings.block_size,
        "model": identity.model.source or None,
        "SHA-256 of the model": identity.model.sha256 or None,
        "data": ", ".join([f"{path} ({n:,} samples)" for path, n in data.files] + [f"{name}()" for name in data.made])
        or None,
        "folds": identity.n_fold,
        "warm start": f"{counted(len(ledger.adopted), 'trial')} of {', '.join(identity.warm_start)}"
        if ledger.adopted
        else None,
    }
    return {
        "command": shlex.join(settings.command_line),
        "facts": {name: str(fact) for name, fact in facts.items() if fact is not None},
        "versions": {str(name): str(version) for name, version in settings.versions.items()},
        "training": {
            name: json.dumps(value)
            for name, value in identity.training.plain.items()
            if value is not None and name not in settings.idle
        },
        "space": {} if space is None else {parameter.name: described(parameter) for parameter in space.parameters},
        "pruner": identity.pruner and identity.pruner.plain,
    }


# ---------------------------------------------------------------- trials


def _trial(trial: Trial, ledger: Ledger) -> dict[str, Any]:
    row = row_of(trial, ledger) | {"state": trial.standing}
    return {name: row[name] for name in ("state", "epochs", "n_folds", "attempt", "block")} | {
        "figure": trial.figure_of_merit,
        "std": trial.figure_of_merit_std,
        "so_far": trial.figure_so_far,
        "origin": trial.origin,
        "begins_s": row["assigned_at_s"],
        "ends_s": measured_at_s(trial),
        "time_s": time_s(trial),
        "pareto": trial.number in ledger.pareto,
        "objectives": [trial.objectives.get(objective.name) for objective in ledger.objectives],
    }


def measured_at_s(trial: Trial) -> float | None:
    """Return when a trial was last measured: for a trial paused and later pruned, the time of the pause."""
    if trial.running:
        return None
    return max((a.ended_at_s for a in trial.assignments if a.ended_at_s is not None), default=trial.ended_at_s)


def axis_of(name: str, trials: Sequence[Trial], space: Space | None) -> dict[str, Any]:
    """Return a parameter and its value in each trial: a number, the index of a category, or None."""
    parameter = next((p for p in space.parameters if p.name == name), None) if space is not None else None
    points = [trial.point for trial in trials]
    axis: dict[str, Any] = {
        "name": name,
        "is_constant": isinstance(parameter, Constant),
        "log": getattr(parameter, "prior", "") == "log-uniform",
        "low": getattr(parameter, "low", None),
        "high": getattr(parameter, "high", None),
        "condition": "" if parameter is None or parameter.condition is None else str(parameter.condition),
    }
    tried = [point[name] for point in points if name in point]
    own: list[Value] = []
    if isinstance(parameter, Categorical | Ordinal):
        own = [parameter.value_at(index) for index in range(parameter.n_values)]
    if not own and all(map(is_number, tried)):
        return axis | {"labels": None, "x": [point.get(name) for point in points]}
    labels = _labels([*own, *tried])
    places = {key: place for place, key in enumerate(labels)}
    x = [places[text(point[name])] if name in point else None for point in points]
    return axis | {"labels": [*labels.values()], "x": x}


def _labels(values: Sequence[Value]) -> dict[str, str]:
    """Return JSON of a value -> unique label."""
    labels: dict[str, str] = {}
    for value in values:
        label = value_text(value)
        labels.setdefault(text(value), repr(value) if label in labels.values() else label)
    return labels


def curves_of(trials: Sequence[Trial]) -> list[list[Any]]:
    """Return (trial, epochs, figure of merit after each), where figures are means over the folds that reported it."""
    found = [(trial.number, trial.curve) for trial in trials if trial.reports]
    step = math.ceil(sum(len(by_epoch) for _, by_epoch in found) / MOST_POINTS) or 1
    curves = []
    for number, by_epoch in found:
        kept = sorted({*[*by_epoch][::step], [*by_epoch][-1]})
        curves.append([number, kept, [_short(by_epoch[epoch]) for epoch in kept]])
    return curves


def spans_of(ledger: Ledger) -> dict[str, list[Any]]:
    """Return which block trained what and when; an assignment without an end ended with its start."""
    ends = [session.last_at_s for session in ledger.sessions]
    starts = [session.started_at_s for session in ledger.sessions]
    rows = []
    for a in ledger.assignments:
        session = max(sum(start <= a.assigned_at_s for start in starts) - 1, 0)
        until_s = ends[session] if a.ended_at_s is None else min(a.ended_at_s, ends[session])
        who = {"trial": a.trial, "fold": a.fold, "block": a.block, "team": a.team}
        times = {"from_s": round(a.assigned_at_s, 3), "to_s": round(until_s, 3)}
        rows.append(who | times | {"epoch": a.epoch, "how": "under way" if a.end is None else a.end.value})
    return _columns(rows)


# ---------------------------------------------------------------- effects, staleness


def prepare(ledger: Ledger) -> None:
    """Import what `effects_data` needs, which takes a second, once there are enough trials; later calls are cheap."""
    if not ledger.is_training and ledger.n_by_state()["complete"] >= _LEAST:
        import_module("nnlo_opt.app.analysis.effects")


def effects_data(ledger: Ledger, space: Space | None) -> dict[str, Any]:
    """Return importance and dependence of the parameters, or why there are none."""
    if space is None:
        return {"why": "This run has no search space."}
    figures, epoch = _comparable(ledger)
    known = [
        (ledger.trials[number].point, figure)
        for number, figure in figures.items()
        if math.isfinite(figure) and space.contains(ledger.trials[number].point)
    ]
    if len(known) < _LEAST:
        n = len(known) or "none"
        return {"why": f"At least {_LEAST} complete trials are needed to tell parameters apart; there are {n}."}
    if len({figure for _, figure in known}) == 1:
        return {"why": "All complete trials have the same figure of merit: no parameter makes a difference."}
    from threadpoolctl import threadpool_limits

    from nnlo_opt.app.analysis.effects import effects_of

    try:
        points, figures_of_points = zip(*known, strict=True)
        with threadpool_limits(1):  # BLAS threads would mostly wait for each other
            found = effects_of(space, points, figures_of_points, maximise=ledger.direction == "max")
    except (ValueError, ArithmeticError) as error:  # a LinAlgError is a ValueError
        return {"why": f"No surrogate fits the complete trials ({error})."}
    effects = [
        {
            "name": effect.name,
            "importance": [round(share, 4) for share in effect.importance],
            "values": effect.values,
            "texts": [value_text(value) for value in effect.values],
            "dependence": [[_short(figure) for figure in band] for band in effect.dependence],
        }
        for effect in found.effects
    ]
    return {"effects": effects, "n_trials": found.n_trials, "explained": round(found.explained, 3), "epoch": epoch}


def _comparable(ledger: Ledger) -> tuple[dict[int, float], int | None]:
    """Return trial -> comparable figure of merit, and the epoch of these figures; None for final figures.

    By default these are the complete trials. If trials were pruned, the complete ones are a selection of good ones and
    tell little about parameters: then figures at the last epoch that half of the trials have reached are used.
    """
    complete = {
        trial.number: trial.figure_of_merit
        for trial in ledger.trials
        if trial.state is TrialState.COMPLETE and trial.figure_of_merit is not None
    }
    if not any(trial.state in (TrialState.PRUNED, TrialState.PAUSED) for trial in ledger.trials):
        return complete, None
    after: dict[int, dict[int, float]] = {}
    means = {trial.number: trial.curve for trial in ledger.trials if trial.reports}
    for number, by_epoch in means.items():
        for epoch, figure in by_epoch.items():
            after.setdefault(epoch, {})[number] = figure
    epoch = max((epoch for epoch, figures in after.items() if len(figures) >= len(means) / 2), default=0)
    return (after[epoch], epoch) if len(after.get(epoch, ())) > len(complete) else (complete, None)


def _staleness(ledger: Ledger, run_directory: Path) -> dict[str, Any]:
    """Return the staleness of updates over the finished folds; of a long run the first ones."""
    total = StalenessStatistics()
    by_trial: dict[int, StalenessStatistics] = {}
    folds = [(trial, fold) for trial in ledger.trials for fold in trial.folds]
    n_read = 0
    for trial, fold in folds[:MOST_HISTORIES]:
        with suppress(OSError, ValueError, TypeError, LookupError, AttributeError, NnloError):
            path = result_directory(run_directory, trial, fold) / HISTORY_NAME
            found = StalenessStatistics.from_json(parse_object(path.read_bytes(MOST_BYTES))["staleness"])
            total.merge(found)
            by_trial.setdefault(trial.number, StalenessStatistics()).merge(found)
            n_read += 1
    return {
        "histogram": list(total.histogram.items()),
        "dropped": total.n_dropped,
        "trials": [[number, round(found.mean, 3), found.max] for number, found in by_trial.items() if found.n_updates],
        "n_read": n_read,
        "n_folds": len(folds),
    }
