"""Uses trials of earlier searches as observations of this one; parameters are matched by name."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.space.space import Space
from nnlo_opt.core.trials.events import Observation
from nnlo_opt.core.trials.objectives import OutcomeConstraint
from nnlo_opt.core.trials.trial import Trial

#: prefix of the columns of metrics in results.csv
_METRIC = "m:"


class Earlier(Frozen):
    """Observations from one earlier search."""

    #: where they come from, for messages
    source: str
    #: one for each complete trial
    observations: Sequence[Observation]
    #: names of its parameters
    names: Sequence[str]
    #: figure of merit and direction of the earlier search; None if unknown
    figure_of_merit: str | None = None
    direction: str | None = None
    #: its outcome constraints; None if unknown
    constraints: Sequence[str] | None = None
    #: True if values are in another tool's form, for example text
    is_foreign: bool = True

    def __str__(self) -> str:
        return self.source


def observations_of(trials: Iterable[Trial]) -> list[Observation]:
    """Return the complete ones of `trials` as observations."""
    return [
        Observation(point=trial.point, value=trial.figure_of_merit, std=trial.standard_error)
        | ({"feasible": False} if trial.feasible is False else {})
        | ({"outcomes": trial.finite_outcomes} if trial.finite_outcomes else {})
        for trial in trials
        if trial.figure_of_merit is not None
    ]


def metrics_of(columns: Mapping[str, object]) -> dict[str, float]:
    """Return name -> finite metric from columns of results.csv; values may be text."""
    found: dict[str, float] = {}
    for name, value in columns.items():
        if name.startswith(_METRIC) and isinstance(value, int | float | str):
            with suppress(ValueError, OverflowError):
                found[name.removeprefix(_METRIC)] = float(value)
    return {name: value for name, value in found.items() if math.isfinite(value)}


def judged(observations: Iterable[Observation], bounds: Sequence[OutcomeConstraint]) -> list[Observation]:
    """Return observations with their bounded outcomes; if all outcomes are known, they decide what is feasible."""
    names = {bound.name for bound in bounds}
    found = []
    for observation in observations:
        own = observation.copy()
        outcomes = {name: x for name, x in own.pop("outcomes", {}).items() if name in names}
        if outcomes:
            own["outcomes"] = outcomes
        if bounds and outcomes.keys() == names:
            own["feasible"] = all(bound.allows(outcomes[bound.name]) for bound in bounds)
        found.append(own)
    return found


def unknown_outcomes(observations: Sequence[Observation], bounds: Sequence[OutcomeConstraint]) -> list[str]:
    """Return a remark for each bounded outcome that some observations lack."""
    remarks = []
    for name in dict.fromkeys(bound.name for bound in bounds):
        n_all, n_known = len(observations), sum(name in o.get("outcomes", {}) for o in observations)
        if n_known < n_all:
            remarks.append(f"{n_all - n_known} of {n_all} trials have no `m:{name}`, so only their feasibility counts")
    return remarks


def standard_error(std: object, n_folds: object) -> float | None:
    """Return the standard error of a mean over folds from their spread; None if the values are not numbers."""
    if not (isinstance(std, int | float) and isinstance(n_folds, int | float) and n_folds > 1):
        return None
    error = std / math.sqrt(n_folds - 1)
    return error if 0 <= error < math.inf else None


def adopted_observations(
    theirs: Sequence[Observation], names: Sequence[str], ours: Space
) -> tuple[list[Observation], list[str]]:
    """Return the observations of another run as points of `ours`, and remarks on the differences.

    A parameter that is not in `ours` is removed from the points. A trial with a point outside `ours` is skipped.
    Figures of merit stay unchanged.

    Args:
        theirs: observations of the other run.
        names: names of its parameters.
        ours: search space of this run.
    """
    observations: list[Observation] = []
    outside: Counter[str] = Counter()
    for observation in theirs:
        point = {name: observation["point"][name] for name in ours.names if name in observation["point"]}
        if ours.contains(point):
            observations.append(Observation(**{"std": None, **observation, "point": point}))
        else:
            outside.update([_culprit(point, ours)])
    remarks = [f"`{name}` is not a parameter here and is ignored" for name in names if name not in ours.names]
    for name, n_trials in outside.items():
        why = f"they have no value of `{name}`" if name not in names else f"`{name}` is outside {ours[name]}"
        remarks.append(f"{n_trials} of {len(theirs)} trials skipped: {why}")
    return observations, remarks


def _culprit(point: Mapping[str, object], space: Space) -> str:
    """Return the first parameter whose value or absence excludes `point` from `space`."""
    wrong = [name for name, value in point.items() if not space[name].contains(value)]
    missing = [name for name in space.names if name not in point]
    return [*wrong, *missing, *space.names][0]
