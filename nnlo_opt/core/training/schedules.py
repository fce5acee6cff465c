"""Learning rate schedules: a warm-up, then a schedule. Pure functions of the progress.

Progress is counted in epochs, as samples trained over all workers / samples of the training set, so a schedule depends
neither on the number of workers nor on the size of a batch. With p the progress, E the epochs of the training, W the
epochs of the warm-up and q = (p - W) / (E - W) the part of the rest that is done, the base learning rate is multiplied
by

    p < W              p / W                       Goyal et al., arXiv:1706.02677, section 2.2, begun at 0
    constant           1
    linear             1 - q
    cosine             (1 + cos(pi q)) / 2         Loshchilov and Hutter, arXiv:1608.03983, equation (5), one period
    exponential:RATE   RATE^(p - W)
    step:EVERY:FACTOR  FACTOR^floor(p / EVERY)     Goyal et al., section 5.1: EVERY counts from the very beginning

A step during the warm-up multiplies it.
"""

import math

from nnlo_opt.core.base.errors import ConfigurationError, did_you_mean
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.space.values import is_number

#: kind -> names of its arguments
_NUMBERS = {"constant": (), "cosine": (), "linear": (), "exponential": ("RATE",), "step": ("EVERY", "FACTOR")}
_FORMS = ", ".join(":".join((kind, *names)) for kind, names in _NUMBERS.items())
_RULE = f"must be one of {_FORMS}, such as step:30:0.1"
#: tolerance for counting steps, so that 0.1 + 0.2 epochs are 3 steps of 0.1
_SLACK = 1e-9


class LearningRateSchedule(Frozen):
    """A warm-up and a schedule; `parse` validates the fields."""

    kind: str = "constant"
    #: arguments of the kind, in the order of the option's text
    numbers: tuple[float, ...] = ()
    #: epochs of the warm-up
    warmup_epochs: float = 0.0

    @classmethod
    def parse(cls, text: str = "constant", warmup_epochs: float = 0.0) -> "LearningRateSchedule":
        """Parse `--lr-schedule` and `--warmup-epochs`."""
        if not (is_number(warmup_epochs) and warmup_epochs >= 0):
            raise ConfigurationError(
                f"`{spelled('warmup_epochs')}` must be a finite number of epochs, at least 0. Received: "
                f"{warmup_epochs!r}. Leave it out to begin with the full learning rate."
            )
        kind, *given = (part.strip() for part in text.split(":")) if isinstance(text, str) else ("",)
        names = _NUMBERS.get(kind)
        if names is None or len(given) != len(names):
            hint = did_you_mean(kind, _NUMBERS) or " Leave it out for a constant learning rate."
            raise ConfigurationError(f"`{spelled('lr_schedule')}` {_RULE}. Received: {text!r}.{hint}")
        numbers = tuple(_number(name, value, text) for name, value in zip(names, given, strict=True))
        return cls(kind=kind, numbers=numbers, warmup_epochs=float(warmup_epochs))

    @property
    def changes(self) -> bool:
        """True if the factor is not always 1."""
        return self.kind != "constant" or self.warmup_epochs > 0

    def check(self, epochs: int) -> None:
        """Raise ConfigurationError if the warm-up is longer than a training of `epochs` epochs."""
        if self.warmup_epochs > epochs:
            raise ConfigurationError(
                f"`{spelled('warmup_epochs')}` must be at most `{spelled('epochs')}`, which is {epochs}. Received: "
                f"{self.warmup_epochs:g}; use a shorter warm-up or train longer."
            )

    def factor(self, epoch_progress: float, epochs: int) -> float:
        """Return the factor of the base learning rate, 0 to 1, in a training of `epochs` epochs.

        Progress outside the training is clipped to its beginning or end.
        """
        p = min(max(epoch_progress, 0.0), float(epochs))
        warmup = min(1.0, p / self.warmup_epochs) if self.warmup_epochs else 1.0
        if self.kind == "step":
            every, drop = self.numbers
            return float(warmup * drop ** math.floor(p / every + _SLACK))
        if p <= self.warmup_epochs:
            return warmup
        after = p - self.warmup_epochs
        done = after / (epochs - self.warmup_epochs)
        match self.kind:
            case "linear":
                return 1.0 - done
            case "cosine":
                return 0.5 * (1.0 + math.cos(math.pi * done))
            case "exponential":
                return float(self.numbers[0] ** after)
        return 1.0

    def factor_of_update(self, n_samples_before: int, n_samples_after: int, n_train: int, epochs: int) -> float:
        """Return `factor` at the middle of an update that covers the samples `before` to `after`, over all workers.

        At the middle neither the first update of a warm-up nor the last one of a decay to 0 has factor 0.
        """
        return self.factor((n_samples_before + n_samples_after) / (2 * n_train), epochs)


class LearningRates:
    """Learning rate factor of one assignment, from the schedule and the user's callbacks.

    Args:
        n_train: training samples of all workers, that is, of one epoch.
        epochs: epochs of the full training.
    """

    def __init__(self, schedule: LearningRateSchedule, n_train: int, epochs: int) -> None:
        self._schedule = schedule
        self._n_train, self._epochs = n_train, epochs
        #: factor requested by the callbacks of worker 1; 1 before their first request
        self._of_callbacks = 1.0
        #: False while the factor has always been 1; stays True afterwards
        self.vary = schedule.changes

    def take_request(self, factor: float) -> None:
        """Set the factor that the callbacks request."""
        self._of_callbacks, self.vary = factor, True

    def factor(self, before: int, after: int) -> float:
        """Return the factor for an update that covers samples `before` to `after`, over all workers."""
        return self._schedule.factor_of_update(before, after, self._n_train, self._epochs) * self._of_callbacks


def _number(name: str, text: str, received: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0 and (name == "EVERY" or value <= 1)):
        rule = "a number of epochs above 0" if name == "EVERY" else "a number above 0 and at most 1"
        raise ConfigurationError(f"`{spelled('lr_schedule')}` {_RULE}, with {name} {rule}. Received: {received!r}.")
    return value
