"""What trials are compared by: one figure of merit, or several objectives.

An objective is a value with a name and a direction. Its *loss* is what is minimised: the value, or its negative where
the direction is max.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.training.stopping import canonical_metric

Direction = Literal["min", "max"]

#: the name of what is compared where no objective is named, and of what a user's function returns
FIGURE = "figure_of_merit"
#: what every fold of a model has besides its metrics
MEASURED = {
    FIGURE: "1 - val_acc, else val_loss; or what the function of --figure-of-merit returns",
    "n_weights": "trainable weights of the model",
    "n_epochs": "epochs trained",
    "train_s": "seconds of training and validation",
    "epoch_s": "the same for an epoch",
}
#: and every call of an objective module besides what it returns
MEASURED_OF_CALL = (FIGURE, "value", "train_s")
EPOCHS = ("last", "best")


@dataclass(frozen=True, slots=True)
class Objective:
    """A value by its name in `FoldFinished.objectives`, and which way is better."""

    name: str
    direction: Direction = "min"

    @classmethod
    def parse(cls, text: str) -> "Objective":
        """Read `NAME:min` or `NAME:max`; a metric of one output is `output:metric:min`. ConfigurationError else."""
        name, _, direction = text.rpartition(":")
        parts = [part.strip() for part in name.split(":")]
        if direction.strip() not in ("min", "max") or "" in parts or len(parts) > 2:
            raise ConfigurationError(
                "`--objective` must be a metric and its direction, such as val_loss:min or val_acc:max. Received: "
                f"{text!r}."
            )
        return cls(canonical_metric(":".join(parts)), "max" if direction.strip() == "max" else "min")

    def loss(self, value: float) -> float:
        """What is to be minimised."""
        return -value if self.direction == "max" else value

    def __str__(self) -> str:
        return f"{self.name}:{self.direction}"


#: what is compared unless something else is asked for
DEFAULT = Objective(FIGURE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What the trials of a run are compared by."""

    #: at least one, none twice; the first is the figure of merit: its best trial is the one whose model is kept
    objectives: tuple[Objective, ...] = (DEFAULT,)
    #: "last": weights and metrics are those of the last epoch (with early stopping, of its best); "best": those of the
    #: epoch in which the first objective was best
    epoch: str = "last"
    #: the user's function that makes the figure of merit, as `--figure-of-merit` names it; None: `trials.figure`
    function: str | None = None

    def __post_init__(self) -> None:
        names = [objective.name for objective in self.objectives]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice:
            raise ConfigurationError(
                f"Every `--objective` must be another one. Received: {twice!r} twice; leave one out."
            )
        if self.epoch not in EPOCHS:
            raise ConfigurationError(f"`--objective-epoch` must be last or best. Received: {self.epoch!r}.")
        if self.epoch == "best" and not self.is_of_epochs:
            raise ConfigurationError(
                "`--objective-epoch best` needs a first objective that is measured after every epoch, such as "
                f"val_loss. Received: {names[0]}; name another one first, or leave `--objective-epoch` out."
            )
        if self.function is not None and FIGURE not in names:
            raise ConfigurationError(
                f"`--figure-of-merit` must be compared by, as `--objective {FIGURE}:min`. Received: objectives without "
                "it; add it, or leave one of the two options out."
            )

    @property
    def several(self) -> tuple[Objective, ...]:
        """All objectives where there are several, else none: one is the figure of merit and has no name of its own."""
        return self.objectives if len(self.objectives) > 1 else ()

    @property
    def is_of_epochs(self) -> bool:
        """Whether the first objective is measured after every epoch."""
        first = self.objectives[0].name
        return first not in MEASURED or (first == FIGURE and self.function is None)

    @property
    def is_plain(self) -> bool:
        """Whether nothing was asked for but a direction."""
        return self.function is None and self.epoch == "last" and [o.name for o in self.objectives] == [FIGURE]


def pick(objectives: Sequence[Objective], values: Mapping[str, float]) -> dict[str, float]:
    """The value of every objective by name; KeyError with the name of one that `values` does not have."""
    return {objective.name: values[objective.name] for objective in objectives}


def losses(objectives: Sequence[Objective], values: Mapping[str, float]) -> tuple[float, ...]:
    """What is to be minimised, in the order of the objectives; KeyError as `pick`."""
    return tuple(objective.loss(values[objective.name]) for objective in objectives)
