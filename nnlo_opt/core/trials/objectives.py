"""Objectives (a figure of merit, or several), and outcome constraints.

An objective is a named value with a direction. Its *loss*, which is minimised, is the value, or its negative if the
direction is max. A trial that violates an outcome constraint is *infeasible* and is never the best.
"""

import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Literal

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.training.stopping import canonical_metric

Direction = Literal["min", "max"]

#: direction as other packages spell it -> ours
_DIRECTIONS: dict[str, Direction] = {
    **dict.fromkeys(("min", "minimize", "minimise"), "min"),
    **dict.fromkeys(("max", "maximize", "maximise"), "max"),
}


def direction_named(word: str) -> Direction | None:
    """Return the direction that a word means; None if unknown."""
    return _DIRECTIONS.get(word)


#: name of the default objective, and of the value that a user's function returns
FIGURE = "figure_of_merit"
#: what it is for a model unless the user gives a function; `figure.figure_of_merit` computes it
DEFAULT_FIGURE = "1 - val_acc, else val_loss"
#: values measured for every fold of a model besides its metrics
MEASURED = {
    FIGURE: f"{DEFAULT_FIGURE}; or what the function of --figure-of-merit returns",
    "n_weights": "trainable weights of the model",
    "n_epochs": "epochs trained",
    "train_s": "seconds of training and validation",
    "epoch_s": "the same for an epoch",
}
EPOCHS = ("last", "best")


@dataclass(frozen=True, slots=True)
class Objective:
    """Name of a value in `FoldFinished.objectives`, and the direction in which it is better."""

    name: str
    direction: Direction = "min"

    @classmethod
    def parse(cls, text: str) -> "Objective":
        """Parse `NAME:min` or `NAME:max`, or `output:metric:min` for one output; else ConfigurationError."""
        name, _, word = text.rpartition(":")
        parts, direction = [part.strip() for part in name.split(":")], direction_named(word.strip())
        if direction is None or "" in parts or len(parts) > 2:
            lone = text.strip(": ")
            known = bool(lone) and ":" not in lone and direction_named(lone) is None
            examples = f"{lone}:min or {lone}:max" if known else "val_loss:min or val_acc:max"
            raise ConfigurationError(
                f"`{spelled('objective')}` must be a metric and its direction, such as {examples}. Received: {text!r}."
            )
        return cls(canonical_metric(":".join(parts)), direction)

    def loss(self, value: float) -> float:
        """Return the loss of a value, which is to be minimised."""
        return -value if self.direction == "max" else value

    def __str__(self) -> str:
        return f"{self.name}:{self.direction}"


#: sign of an outcome constraint -> comparison of value and bound
_KEEPS = {"<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge}
_PART = r"[^<>=:]*[^<>=:\s]\s*"
_BOUND = re.compile(rf"({_PART}(?::{_PART})?)([<>]=?)\s*([-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?)\s*")


@dataclass(frozen=True, slots=True)
class OutcomeConstraint:
    """Bound on a value that is measured by running a trial."""

    name: str
    sign: str
    bound: float

    @classmethod
    def parse(cls, text: str) -> "OutcomeConstraint":
        """Parse `NAME<NUMBER`, or with <=, > or >=; names as for `Objective`. ConfigurationError for anything else."""
        found = _BOUND.fullmatch(text)
        if found is None or not math.isfinite(bound := float(found[3])):
            raise ConfigurationError(
                f"`{spelled('outcome_constraint')}` must be a metric, one of <, <=, >, >= and a finite number, such as "
                f"n_weights<100000. Received: {text!r}."
            )
        return cls(canonical_metric(found[1].strip()), found[2], bound)

    def allows(self, value: float) -> bool:
        """Return True for a value within the bound; False for NaN."""
        return bool(_KEEPS[self.sign](value, self.bound))

    @property
    def is_upper(self) -> bool:
        """True if values must be below the bound."""
        return self.sign in ("<", "<=")

    def excess(self, value: float) -> float:
        """Return by how much a value violates the bound; at most 0 if it does not."""
        excess = value - self.bound if self.is_upper else self.bound - value
        return excess if excess > 0.0 or self.allows(value) else math.ulp(0.0)

    def __str__(self) -> str:
        return f"{self.name}{self.sign}{repr(self.bound).removesuffix('.0')}"


#: default objective
DEFAULT = Objective(FIGURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """How the trials of a run are compared."""

    #: at least one, all different; the first is the figure of merit, whose best model is kept
    objectives: tuple[Objective, ...] = (DEFAULT,)
    #: "last": use weights and metrics of the last epoch (with early stopping, of the best epoch); "best": of the epoch
    #: in which the first objective was best
    epoch: str = "last"
    #: value of `--figure-of-merit`, the user's function; None for `core.trials.figure`
    function: str | None = None
    #: bounds on the means over the folds of a trial
    constraints: tuple[OutcomeConstraint, ...] = ()

    def __post_init__(self) -> None:
        names = [objective.name for objective in self.objectives]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise ConfigurationError(
                f"Each `{spelled('objective')}` must be different. Received: {twice!r} twice; leave one out."
            )
        if self.epoch not in EPOCHS:
            raise ConfigurationError(f"`{spelled('objective_epoch')}` must be last or best. Received: {self.epoch!r}.")
        if self.epoch == "best" and not self.is_of_epochs:
            raise ConfigurationError(
                f"`{spelled('objective_epoch', 'best')}` needs a first objective that is measured after every epoch, "
                f"such as val_loss. Received: {names[0]}; name another one first, or leave "
                f"`{spelled('objective_epoch')}` out."
            )
        if self.function is not None and FIGURE not in names:
            raise ConfigurationError(
                f"`{spelled('figure_of_merit')}` must be one of the objectives, as in "
                f"`{spelled('objective', f'{FIGURE}:min')}`. Received: objectives without it; add it, or leave one of "
                "the two out."
            )
        for one, other in combinations(self.constraints, 2):
            # Two bounds on the same side are refused, too: only one of them would matter.
            if one.name == other.name and not (one.allows(other.bound) and other.allows(one.bound)):
                raise ConfigurationError(
                    f"`{spelled('outcome_constraint')}` must give a metric one bound below and one above, with "
                    f"values between them. Received: {one} and {other}; leave one out."
                )

    @property
    def several(self) -> tuple[Objective, ...]:
        """All objectives if there are several, else empty: a single one is the unnamed figure of merit."""
        return self.objectives if len(self.objectives) > 1 else ()

    @property
    def needed(self) -> tuple[Objective | OutcomeConstraint, ...]:
        """Objectives and constraints: a trial must measure a value for each."""
        return *self.objectives, *self.constraints

    @property
    def is_of_epochs(self) -> bool:
        """True if the first objective is measured after every epoch."""
        first = self.objectives[0].name
        return first not in MEASURED or (first == FIGURE and self.function is None)

    @property
    def is_plain(self) -> bool:
        """True if no option but the direction was given."""
        return self.function is None and self.epoch == "last" and [o.name for o in self.objectives] == [FIGURE]


def pick(parts: Iterable[Objective | OutcomeConstraint], values: Mapping[str, float]) -> dict[str, float]:
    """Return the value of each objective or constraint by name; KeyError with a name that `values` lacks."""
    return {part.name: values[part.name] for part in parts}


def losses(objectives: Sequence[Objective], values: Mapping[str, float]) -> tuple[float, ...]:
    """Return the losses, in the order of the objectives; KeyError as in `pick`."""
    return tuple(objective.loss(values[objective.name]) for objective in objectives)


def dominates(a: Sequence[float], b: Sequence[float]) -> bool:
    """Return True if losses `a` dominate `b`: nowhere worse, somewhere better."""
    return a != b and all(x <= y for x, y in zip(a, b, strict=True))


@dataclass(slots=True)
class ParetoSet:
    """Non-dominated trials among those added so far; adding one takes time O(size of the set).

    Trials with equal losses do not dominate each other: either all of them are in the set, or none.
    """

    #: trial -> its losses; no trial dominates another
    _losses: dict[int, tuple[float, ...]] = field(default_factory=dict, init=False)

    def add(self, trial: int, losses: Sequence[float]) -> bool:
        """Add a trial; return True if it is in the set now.

        Args:
            trial: number of the trial.
            losses: finite losses, one per objective.

        Raises:
            ValueError: a loss is not finite, or their number differs from earlier trials.
        """
        new = tuple(losses)
        if not all(map(math.isfinite, new)):
            raise ValueError(f"The losses of a trial must be finite. Received: {new} for trial {trial}.")
        if any(len(known) != len(new) for known in self._losses.values()):
            raise ValueError(f"Every trial must have the same number of losses. Received: {new} for trial {trial}.")
        if any(dominates(known, new) for known in self._losses.values()):
            return False
        self._losses = {number: known for number, known in self._losses.items() if not dominates(new, known)}
        self._losses[trial] = new
        return True

    @property
    def trials(self) -> list[int]:
        """Numbers of the trials in the set, sorted by the first objective, best first."""
        return sorted(self._losses, key=lambda trial: (self._losses[trial], trial))

    def __contains__(self, trial: int) -> bool:
        return trial in self._losses

    def __len__(self) -> int:
        return len(self._losses)
