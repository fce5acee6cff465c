"""The values that a trial is compared by, as a user's objective has returned them."""

import math
import reprlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from nnlo_opt.errors import TrialError
from nnlo_opt.trials.objectives import FIGURE, Comparison, pick


def values_of_call(comparison: Comparison, returned: Mapping[str, float], train_s: float) -> dict[str, float]:
    """The value of every objective; TrialError for one that was not returned."""
    known = {"train_s": train_s, **returned}
    if "value" in returned:
        known.setdefault(FIGURE, returned["value"])
    try:
        return pick(comparison.objectives, known)
    except KeyError as error:
        names = ", ".join(returned) or "an empty dict"
        if error.args[0] == FIGURE:
            raise TrialError(
                f"`--objective` must say which value of the objective counts; it returned {names}"
            ) from None
        raise TrialError(
            f"the objective must return a dict with `{error.args[0]}`, as `--objective` says; it returned {names}"
        ) from None


def returned_values(value: Any) -> dict[str, float]:
    """What an objective returned, by name: a number is called `value`. TrialError for anything that is not finite."""
    values = {}
    for name, part in (value if isinstance(value, Mapping) else {"value": value}).items():
        try:
            values[str(name)] = float(np.asarray(part, dtype=float).item())
        except Exception:  # it is a user's object: a tensor of many elements raises what its framework likes
            values[str(name)] = math.nan
        if not math.isfinite(values[str(name)]):
            of = f" as `{name}`" if isinstance(value, Mapping) else ""
            raise TrialError(f"the objective must return a finite number{of}; received: {reprlib.repr(part)}")
    return values
