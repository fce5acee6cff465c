"""How long virtual folds train: drawn from a distribution or a table, or computed from the point."""

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from nnlo_opt.errors import ConfigurationError, TrialError
from nnlo_opt.space.space import Point

#: columns that a table of durations may have, the first that is there is taken; `results.csv` has the second
COLUMNS = ("seconds", "train_s")


class Durations(Protocol):
    """Seconds that a fold trains."""

    def seconds(self, point: Point, rng: np.random.Generator) -> float:
        """For a fold at `point`, at least 0; everything random comes from `rng`."""
        ...


@dataclass(frozen=True, slots=True)
class Lognormal:
    """exp(N(log `median_s`, `sigma`²)); `sigma` 0 is a constant, 0.5 puts two thirds between 0.6 and 1.65 medians."""

    median_s: float
    sigma: float = 0.0

    def __post_init__(self) -> None:
        if not (0 < self.median_s < math.inf and 0 <= self.sigma < math.inf):
            raise ConfigurationError(
                "A duration must have a median above 0 seconds and a sigma of at least 0. "
                f"Received: {self.median_s:g} and {self.sigma:g}."
            )

    def seconds(self, point: Point, rng: np.random.Generator) -> float:
        return self.median_s * math.exp(self.sigma * rng.standard_normal()) if self.sigma else self.median_s


@dataclass(frozen=True, slots=True)
class Table:
    """One of the durations that were measured, each as likely."""

    values_s: Sequence[float]

    def seconds(self, point: Point, rng: np.random.Generator) -> float:
        return self.values_s[int(rng.integers(len(self.values_s)))]


@dataclass(frozen=True, slots=True)
class Computed:
    """What a user's function says of the point."""

    function: Callable[[Point], float]

    def seconds(self, point: Point, rng: np.random.Generator) -> float:
        seconds = float(self.function(point))
        if not 0 <= seconds < math.inf:
            raise TrialError(f"A duration must be finite seconds, at least 0. The function returned {seconds}.")
        return seconds


def read_table(path: Path) -> Table:
    """The durations in a CSV file, such as the `results.csv` of a run; empty fields (failed trials) are left out."""
    try:
        with path.open(newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"A table of durations must be a CSV file. Received: `{path}` ({error}).") from None
    column = next((name for name in COLUMNS if rows and name in rows[0]), None)
    if column is None:
        raise ConfigurationError(
            f"A table of durations must have a column {' or '.join(f'`{name}`' for name in COLUMNS)}, and a row. "
            f"Received: `{path}` with {', '.join(f'`{name}`' for name in rows[0]) if rows else 'no row'}."
        )
    values = [_seconds(row[column], path) for row in rows if row[column]]
    if not values:
        raise ConfigurationError(f"A table of durations must hold one at least. Received: `{path}`, all empty.")
    return Table(values)


def _seconds(text: str, path: Path) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < math.inf:
        raise ConfigurationError(f"A duration must be finite seconds, at least 0. Received: {text} in `{path}`.")
    return value
