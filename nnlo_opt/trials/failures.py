"""Trials that have failed, by their cause."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from nnlo_opt.trials.trial import Trial, TrialState

#: what differs between two failures for the same reason: points, addresses, numbers; but the line of code does not
_VARYING = re.compile(r"(line \d+)|\{[^{}]*\}|0x[0-9a-f]+|[-+]?\d[\d.,]*(?:e[-+]?\d+)?|[-+]?\b(?:nan|inf)\b")


@dataclass(frozen=True, slots=True)
class Failure:
    """A cause of failures: the reason of the first trial, and the numbers of all."""

    reason: str
    trials: list[int]


def failures(trials: Iterable[Trial]) -> list[Failure]:
    """Return the causes for which trials have failed, the most frequent one first."""
    found: dict[str, Failure] = {}
    for trial in trials:
        if trial.state is TrialState.FAILED:
            cause = cause_of(trial.reason, trial.point)
            found.setdefault(cause, Failure(trial.reason, [])).trials.append(trial.number)
    return sorted(found.values(), key=lambda failure: -len(failure.trials))


def cause_of(reason: str, point: Mapping[str, Any]) -> str:
    """Return the reason of a failure at `point` without numbers and values of the point, except the line of code."""
    words = [re.escape(value) for value in point.values() if isinstance(value, str) and len(value) > 2]
    cause = re.sub(rf"\b(?:{'|'.join(words)})\b", "#", reason) if words else reason
    return _VARYING.sub(lambda found: found[1] or "#", cause)
