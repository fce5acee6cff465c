"""Trials of another run as observations of this search, with parameters matched by their names."""

from collections import Counter
from collections.abc import Iterable

from nnlo_opt.search.base import Observation
from nnlo_opt.space.space import Space
from nnlo_opt.trials.trial import Trial


def adopted_observations(trials: Iterable[Trial], theirs: Space, ours: Space) -> tuple[list[Observation], list[str]]:
    """Return the complete ones of `trials` as points of `ours`, and remarks on the differences.

    A parameter that is not in `ours` is removed from the points. A trial with a point outside `ours` is skipped.
    Figures of merit stay unchanged.
    """
    observations: list[Observation] = []
    outside: Counter[str] = Counter()
    complete = [trial for trial in trials if trial.figure_of_merit is not None]
    for trial in complete:
        point = {name: trial.point[name] for name in ours.names if name in trial.point}
        if ours.contains(point):
            observations.append({"point": point, "value": trial.figure_of_merit or 0.0, "std": trial.standard_error})
        else:
            outside.update([_culprit(point, ours)])
    remarks = [f"`{name}` is not a parameter here and is ignored" for name in theirs.names if name not in ours.names]
    for name, n_trials in outside.items():
        why = f"they have no value of `{name}`" if name not in theirs.names else f"`{name}` is outside {ours[name]}"
        remarks.append(f"{n_trials} of {len(complete)} trials skipped: {why}")
    return observations, remarks


def _culprit(point: dict[str, object], space: Space) -> str:
    """Return the first parameter whose value or absence puts `point` outside `space`."""
    wrong = [name for name, value in point.items() if not space[name].contains(value)]
    missing = [name for name in space.names if name not in point]
    return [*wrong, *missing, *space.names][0]
