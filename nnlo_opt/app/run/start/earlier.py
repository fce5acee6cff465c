"""Measurements of earlier searches, from which a search starts with `--warm-start`."""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nnlo_opt.app.analysis.frames import text_of
from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.core.base.errors import ConfigurationError, require_package
from nnlo_opt.core.base.files import regular
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.search.warm_start import (
    Earlier,
    adopted_observations,
    judged,
    metrics_of,
    observations_of,
    standard_error,
    unknown_outcomes,
)
from nnlo_opt.core.space.fixing import value_of
from nnlo_opt.core.space.space import Point, Space
from nnlo_opt.core.trials.events import Observation
from nnlo_opt.core.trials.identity import RunIdentity
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.objectives import OutcomeConstraint
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME

if TYPE_CHECKING:
    from nnlo_opt.app.analysis.frames import Frame

#: columns of a CSV; the columns of parameters begin with `p:`
_FIGURE, _STATE = "figure_of_merit", "state"


def observations_of_runs(
    places: Sequence[Path | str | Earlier], identity: RunIdentity, space: Space
) -> tuple[list[Observation], list[str]]:
    """Return usable observations of earlier searches in `space`, and lines that summarise them.

    ConfigurationError if a place has no search, or its figure of merit or direction differs from `identity`.
    """
    observations: list[Observation] = []
    lines = []
    bounds = [OutcomeConstraint.parse(text) for text in identity.constraints]
    for place in places:
        earlier = read_earlier(place)
        for name in (_FIGURE, "direction", "constraints"):
            theirs, ours = getattr(earlier, name), getattr(identity, name)
            if theirs not in (None, ours):
                raise ConfigurationError(
                    f"`{spelled('warm_start')}` must name runs with the same {name.replace('_', ' ')}, because "
                    f"figures are compared. Received: `{place}` with {theirs}, but this run has {ours}. Leave it out."
                )
        known = earlier.observations
        if earlier.is_foreign:
            known = [Observation(**o | {"point": _as_ours(o["point"], space)}) for o in known]
        found, remarks = adopted_observations(judged(known, bounds), earlier.names, space)
        remarks += unknown_outcomes(found, bounds)
        observations += found
        lines += [f"Warm start from `{place}`: {remark}." for remark in remarks]
        lines.append(f"Warm start from `{place}`: {len(found)} of {len(known)} complete trials are used.")
    return observations, lines


def read_earlier(place: Path | str | Earlier) -> Earlier:
    """Return the measurements of a run directory, an Optuna study or a CSV; ConfigurationError for anything else."""
    if isinstance(place, Earlier):
        return place
    path = Path(place)
    if path.is_dir():
        return earlier_of_ledger(ledger_of(path, spelled("warm_start")), str(path))
    if path.is_file() and path.suffix.lower() == ".csv":
        return _of_table(path)
    if path.is_file() or ":" in str(place):
        return _of_study(str(place))
    raise ConfigurationError(
        f"`{spelled('warm_start')}` must name a run directory, which holds a `{JOURNAL_NAME}`, an Optuna study or a "
        f"CSV. Received: `{place}`. Correct it."
    )


def earlier_of_ledger(ledger: Ledger, source: str) -> Earlier:
    """Return the measurements of a run; ConfigurationError for a training. `source`: description of the run."""
    space = ledger.identity.space
    if space is None:
        raise ConfigurationError(
            f"`{spelled('warm_start')}` must name runs that are searches. Received: `{source}`, a training. Leave it "
            "out."
        )
    return Earlier(
        source=source,
        observations=observations_of(ledger.trials),
        names=space.names,
        figure_of_merit=ledger.identity.figure_of_merit,
        direction=ledger.identity.direction,
        constraints=ledger.identity.constraints,
        is_foreign=False,
    )


def ledger_of(path: Path, option: str) -> Ledger:
    """Return the ledger of the run given by `option`; ConfigurationError if there is none."""
    try:
        return read_ledger(path)
    except OSError:
        raise ConfigurationError(
            f"`{option}` must name a run directory, which holds a `{JOURNAL_NAME}`. Received: `{path}`. Correct it."
        ) from None


# ---------------------------------------------------------------- other tools


def _of_study(place: str) -> Earlier:
    require_package(f"`{spelled('warm_start')}` with a study of Optuna", "optuna", "optuna", "leave it out")
    from nnlo_opt.engine.search.optuna_reading import read_study

    study, observations = read_study(place, spelled("warm_start"))
    names = dict.fromkeys(name for observation in observations for name in observation["point"])
    return Earlier(
        source=place,
        observations=[each for each in observations if math.isfinite(each["value"])],
        names=[*names],
        figure_of_merit=study.user_attrs.get(_FIGURE),  # of a study exported by this package
        direction=study.direction.name.lower()[:3],
    )


def _of_table(path: Path) -> Earlier:
    try:
        with regular(path).open(newline="", encoding="utf-8-sig") as file:
            return _of_rows(csv.DictReader(file), str(path))
    except (OSError, ValueError, csv.Error) as error:
        raise _wrong_table("A CSV", f"`{path}` ({error})") from None


def earlier_of_frame(frame: "Frame", source: str) -> Earlier:
    """Return the measurements of a data frame with the columns of results.csv; ConfigurationError without these."""
    try:
        return _of_rows(csv.DictReader(io.StringIO(frame.to_csv(index=False))), source)
    except (ValueError, csv.Error) as error:
        raise _wrong_table("A data frame", f"{source} ({error})", _RENAMED) from None


#: how to get a data frame with these columns
_RENAMED = 'Name them by `frame.rename(columns={"x": "p:x", "value": "figure_of_merit"})`'


def _wrong_table(what: str, received: str, remedy: str = "Correct it") -> ConfigurationError:
    return ConfigurationError(
        f"{what} for `{spelled('warm_start')}` must have the columns of results.csv, at least {_FIGURE} with a "
        f"number and one p:PARAMETER. Received: {received}. {remedy}."
    )


def _of_rows(reader: "csv.DictReader[str]", source: str) -> Earlier:
    columns, rows = reader.fieldnames or [], [*reader]
    names = [column.removeprefix("p:") for column in columns if column.startswith("p:")]
    if _FIGURE not in columns or not names:
        raise ValueError(f"its columns are {', '.join(columns) or 'none'}")
    # The reader puts surplus cells under the key None, and None into missing cells.
    if wrong := [n for n, row in enumerate(rows, 1) if None in row or None in row.values()]:
        raise ValueError(f"row {wrong[0]} below the names has a different number of cells")
    ended = [row for row in rows if row.get(_STATE, "complete") == "complete"]
    return Earlier(source=source, observations=[_observation(row, names) for row in ended], names=names)


def _observation(row: Mapping[str, str], names: Sequence[str]) -> Observation:
    value, std = float(row[_FIGURE]), float(row.get("figure_of_merit_std") or 0)
    n_folds = float(row.get("n_folds") or 1)
    if not math.isfinite(value + std + n_folds):
        raise ValueError(f"a {_FIGURE} of {value} ± {std} over {n_folds} folds")
    point: Point = {name: text_of(row[f"p:{name}"]) for name in names}
    is_feasible = row.get("feasible") != "False"
    error, outcomes = standard_error(std, n_folds), metrics_of(row)
    return Observation(point=point, value=value, std=error, feasible=is_feasible, outcomes=outcomes)


def _as_ours(point: Mapping[str, object], space: Space) -> Point:
    """Return a point with values of `space` in place of their texts.

    An empty text means None, or that the point does not have the parameter.
    """
    known = {name: value_of(space[name], value) for name, value in point.items() if name in space.names}
    values = {name: value for name, value in known.items() if value != "" or space[name].contains("")}
    absent = {name: None for name in known if name not in values and space[name].contains(None)}
    return values if not absent or space.contains(values) else values | absent
