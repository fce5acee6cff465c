"""Values returned by a user's objective."""

from collections.abc import Collection, Mapping
from typing import Any

from nnlo_opt.core.base.errors import MisuseError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.comm.messages import EpochReported, FoldFinished, RunFold
from nnlo_opt.core.training.stopping import canonical_metric
from nnlo_opt.core.trials.figure import finite_number
from nnlo_opt.core.trials.objectives import FIGURE, Comparison, pick
from nnlo_opt.engine.objective.epochs import EpochCount, whole_epoch


def _remedy(comparison: Comparison | None) -> str:
    """Explain how to return values, with the names of the objectives if there are several."""
    if comparison is not None and comparison.several:
        numbers = ", ".join(f"'{each.name}': 0.1" for each in comparison.objectives)
        return f"return several numbers by name, such as `{{{numbers}}}`"
    return (
        "return one number, or several by name, such as `{'loss': 0.1, 'size': 9}` with `objective=['loss:min', "
        "'size:min']`"
    )


def finished_fold(
    comparison: Comparison, last: EpochReported | None, assignment: int, value: Any, *, n_epochs: int, train_s: float
) -> FoldFinished:
    """Return the result of a trial whose objective returned `value`, a number or a dict of numbers.

    Args:
        last: last report, whose further figures count as returned; None if there is none.
        n_epochs: last epoch that was reported or saved.
        train_s: duration of the trial, in seconds.

    Raises:
        TrialError: a number is not finite, or one required by `comparison` is missing.
    """
    reported = {} if last is None else {name: n for name, n in last.metrics.items() if name != "value"}
    values = reported | returned_values(value, comparison)
    compared = _values_of_call(comparison, values, train_s)
    return FoldFinished(
        assignment=assignment,
        figure_of_merit=compared[comparison.objectives[0].name],
        metrics=values | pick(comparison.constraints, compared),
        n_epochs=n_epochs,
        train_s=train_s,
        objectives=pick(comparison.several, compared),
    )


def _values_of_call(comparison: Comparison, returned: Mapping[str, float], train_s: float) -> dict[str, float]:
    """Return the values to compare trials by; TrialError if one is missing."""
    known = {"train_s": train_s, **by_metric(returned)}
    if "value" in returned:
        known.setdefault(FIGURE, returned["value"])
    try:
        return pick(comparison.needed, known)
    except KeyError as error:
        names = ", ".join(returned) or "an empty dict"
        if error.args[0] == FIGURE == comparison.objectives[0].name:
            first = next(iter(returned), "loss")
            raise MisuseError(
                f"`{spelled('objective')}` must name the returned value that is the figure of merit; returned were "
                f"{names}; write `{spelled('objective', f'{first}:min')}` or `{spelled('objective', f'{first}:max')}`"
            ) from None
        raise MisuseError(
            f"the objective must return a dict with `{error.args[0]}`, as `{spelled('objective')}` or "
            f"`{spelled('outcome_constraint')}` says; it returned {names}"
        ) from None


def by_metric(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values under their names, and under the names in options (`acc` for `accuracy`)."""
    return {canonical_metric(name): value for name, value in values.items()} | {**values}


def returned_values(value: Any, comparison: Comparison | None = None) -> dict[str, float]:
    """Return name -> number returned by an objective, a single one as `value`; TrialError unless all are finite.

    `comparison`: for the names in the error message.
    """
    if not isinstance(value, Mapping):
        try:
            return {"value": finite_number(value, "the objective must return a finite number")}
        except MisuseError as error:
            remedy = "end it by `return`" if value is None else _remedy(comparison)
            raise MisuseError(f"{error}; {remedy}") from None
    _check_names(value)
    return {str(name): _returned(part, str(name)) for name, part in value.items()}


def _returned(value: Any, name: str) -> float:
    try:
        return finite_number(value, f"the objective must return a finite number as `{name}`")
    except MisuseError as error:
        raise MisuseError(f"{error}; or leave `{name}` out") from None


def _check_names(names: Collection[Any]) -> None:
    """Raise MisuseError if the compared value is given under two names."""
    if "value" in names and FIGURE in names:
        raise MisuseError(
            f"the value of a trial must have one name; received: both `value` and `{FIGURE}`, which means the same; "
            "leave one out, or rename it"
        )


def epoch_reported(
    order: RunFold, comparison: Comparison, count: EpochCount, epoch: Any, value: Any, figures: Mapping[str, Any]
) -> EpochReported:
    """Return the report of user code about an epoch; TrialError unless all values are numbers.

    Args:
        count: how the code counts its epochs.
        figures: name -> further figure; trials are compared by it if it is the first objective.
    """
    what = f"the objective must report a finite number at epoch {whole_epoch(epoch)}"
    _check_names({"value", *figures})
    metrics = {"value": finite_number(value, what)}
    metrics |= {name: finite_number(figure, f"{what} as `{name}`") for name, figure in figures.items()}
    return EpochReported(
        assignment=order.assignment,
        epoch=count.number(epoch),
        metrics=metrics,
        figure_of_merit=by_metric(metrics).get(comparison.objectives[0].name, metrics["value"]),
        waits=order.waits_for_decision,
        counts_from_0=count.is_from_0,
    )
