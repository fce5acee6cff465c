"""Values of a trial that a user's objective has returned, by which the trial is compared."""

import reprlib
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from nnlo_opt.comm.messages import EpochReported, FoldFinished, RunFold
from nnlo_opt.errors import MisuseError
from nnlo_opt.trials.figure import finite_number
from nnlo_opt.trials.objectives import FIGURE, Comparison, pick

_REMEDY = (
    "return one number, or several by name, as `{'loss': 0.1, 'size': 9}` with `objective=['loss:min', 'size:min']`"
)


def finished_fold(
    comparison: Comparison, last: EpochReported | None, assignment: int, value: Any, *, n_epochs: int, train_s: float
) -> FoldFinished:
    """Return the result of a trial whose objective returned `value`, a number or a dict of numbers.

    Args:
        last: the last report, whose further figures count as returned; None without one.
        n_epochs: last epoch that was reported or saved.
        train_s: duration of the trial, in seconds.

    Raises:
        TrialError: a number is not finite, or one that `comparison` needs was not returned.
    """
    reported = {} if last is None else {name: n for name, n in last.metrics.items() if name != "value"}
    values = reported | returned_values(value)
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
    """Return the values that trials are compared by; TrialError for one that was not returned."""
    known = {"train_s": train_s, **returned}
    if "value" in returned:
        known.setdefault(FIGURE, returned["value"])
    try:
        return pick(comparison.needed, known)
    except KeyError as error:
        names = ", ".join(returned) or "an empty dict"
        if error.args[0] == FIGURE == comparison.objectives[0].name:
            raise MisuseError(
                f"`--objective` must name the returned value that is the figure of merit; returned were {names}"
            ) from None
        raise MisuseError(
            f"the objective must return a dict with `{error.args[0]}`, as `--objective` or `--outcome-constraint` "
            f"says; it returned {names}"
        ) from None


def returned_values(value: Any) -> dict[str, float]:
    """Return the numbers of an objective by name, a single one as `value`; TrialError unless all are finite."""
    if not isinstance(value, Mapping):
        try:
            return {"value": finite_number(value, "the objective must return a finite number")}
        except MisuseError as error:
            remedy = "end it by `return`" if value is None else _REMEDY
            raise MisuseError(f"{error}; {remedy}") from None
    return {
        str(name): finite_number(part, f"the objective must return a finite number as `{name}`")
        for name, part in value.items()
    }


def whole_epoch(epoch: Any) -> int:
    """Return the number of an epoch that a user's code has given; TrialError unless it is whole, and 1 at least."""
    if isinstance(epoch, bool) or not isinstance(epoch, Integral) or not 1 <= int(epoch) <= 2**53:
        raise MisuseError(
            f"the epochs of reports must be whole numbers from 1; received: {reprlib.repr(epoch)}; write "
            "`report(epoch, value)`, and count epochs by `range(1, n + 1)`"
        )
    return int(epoch)


def epoch_reported(
    order: RunFold, comparison: Comparison, epoch: Any, value: Any, figures: Mapping[str, Any]
) -> EpochReported:
    """Return the report of a user's code about an epoch; TrialError unless it consists of numbers.

    Args:
        figures: further figures by name; one of them is compared if it is the first objective.
    """
    number = whole_epoch(epoch)
    what = f"the objective must report a finite number at epoch {number}"
    metrics = {"value": finite_number(value, what)}
    metrics |= {name: finite_number(figure, f"{what} as `{name}`") for name, figure in figures.items()}
    return EpochReported(
        assignment=order.assignment,
        epoch=number,
        metrics=metrics,
        figure_of_merit=metrics.get(comparison.objectives[0].name, metrics["value"]),
        waits=order.waits_for_decision,
    )
