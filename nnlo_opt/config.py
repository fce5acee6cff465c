"""Options as frozen values, validated where they are made.

Built only in `cli/`. `TrainingOptions.with_point` is how a search space reaches the training: a parameter named
`train.<option>` replaces that option for one trial.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from nnlo_opt.errors import ConfigurationError

TRAIN_PREFIX = "train."
MODES = ("downpour",)
#: update rules of later steps: refused by name, not unknown
LATER_MODES = ("easgd", "gem", "allreduce")
OPTIMIZERS = ("sgd", "adam", "rmsprop", "adadelta")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """How one trial is trained."""

    #: samples a worker takes for one gradient
    batch: int = 100
    #: passes over all training samples, counted over all workers
    epochs: int = 1
    #: optimizer at the master
    optimizer: str = "adam"
    #: None: the optimizer's own default
    learning_rate: float | None = None
    optimizer_params: Mapping[str, Any] = field(default_factory=dict)
    #: update rule
    mode: str = "downpour"
    #: the master waits for all workers and averages by samples
    synchronous: bool = False
    #: batches a worker trains between two exchanges
    sync_every: int = 1
    #: Keras name; None: the model module's, else inferred
    loss: str | None = None
    early_stopping: str | None = None
    target_metric: str | None = None
    #: epochs between two checkpoints
    checkpoint_interval: int = 1
    shuffle: bool = True

    def __post_init__(self) -> None:
        for name, unit in (
            ("batch", "samples"),
            ("epochs", "epochs"),
            ("sync_every", "batches"),
            ("checkpoint_interval", "epochs"),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigurationError(
                    f"`{option_name(name)}` must be a whole number of {unit}, at least 1. Received: {value!r}."
                )
        if self.optimizer not in OPTIMIZERS:
            raise ConfigurationError(
                f"`--optimizer` must be one of {', '.join(OPTIMIZERS)}. Received: {self.optimizer!r}."
            )
        if self.learning_rate is not None and not (
            isinstance(self.learning_rate, int | float)
            and not isinstance(self.learning_rate, bool)
            and math.isfinite(self.learning_rate)
            and self.learning_rate > 0
        ):
            raise ConfigurationError(
                f"`--learning-rate` must be a finite number above 0. Received: {self.learning_rate!r}."
            )
        if self.mode in LATER_MODES:
            raise ConfigurationError(
                f"`--mode {self.mode}` is not available in this version. Use `--mode downpour`, with or without "
                "`--synchronous`."
            )
        if self.mode not in MODES:
            raise ConfigurationError(f"`--mode` must be one of {', '.join(MODES)}. Received: {self.mode!r}.")
        for name in ("synchronous", "shuffle"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(
                    f"`{option_name(name)}` must be True or False. Received: {getattr(self, name)!r}."
                )

    def with_point(self, point: Mapping[str, Any]) -> "TrainingOptions":
        """These options with the `train.*` parameters of `point` put in; ConfigurationError for one unknown."""
        changes: dict[str, Any] = {}
        for name, value in point.items():
            if not name.startswith(TRAIN_PREFIX):
                continue
            option = name.removeprefix(TRAIN_PREFIX).replace("-", "_")
            if option not in SEARCHABLE:
                raise ConfigurationError(
                    f"A parameter that begins with `train.` must be one of "
                    f"{', '.join(TRAIN_PREFIX + known for known in SEARCHABLE)}. Received: {name!r}."
                )
            changes[option] = value
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


#: what `train.<option>` may name
SEARCHABLE = tuple(f.name for f in fields(TrainingOptions) if f.name not in ("optimizer_params", "checkpoint_interval"))


def option_name(field_name: str) -> str:
    """The command-line option of a field."""
    return "--" + field_name.replace("_", "-")


def model_parameters(point: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a point that goes to `get_model`: every parameter that does not begin with `train.`."""
    return {name: value for name, value in point.items() if not name.startswith(TRAIN_PREFIX)}
