"""Schedulers of torch: those that step once an epoch, and those that count the steps of an optimizer."""

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.models.adapter import CallbackRequests, EpochCallbacks, ModelAdapter
from nnlo_opt.engine.models.own_optimizer import refusal_of_state
from nnlo_opt.engine.models.plain_data import is_kept, packed, plain, unpacked

#: `get_scheduler` of a model module
MakeScheduler = Callable[[Any], Any]
#: schedulers that torch documents as counting batches, with what does the same
_BY_STEP = {"OneCycleLR": "one-cycle", "CyclicLR": "cosine"}
#: entries of a dictionary of `get_scheduler`, those of Lightning
_ENTRIES = ("scheduler", "interval", "monitor")
#: metric of ReduceLROnPlateau, unless another is named
_MONITOR = "val_loss"
#: attributes with the number of steps after which a scheduler of torch changes nothing more
_LENGTHS = ("total_steps", "T_max", "total_iters")


@dataclass(frozen=True, slots=True)
class Schedule:
    """Scheduler that `get_scheduler` returned."""

    scheduler: Any
    #: True if it steps after each step of the optimizer; False: after each epoch
    by_step: bool
    #: metric that it names; None for the default
    monitor: str | None = None

    def __str__(self) -> str:
        return type(self.scheduler).__name__

    @property
    def n_steps(self) -> int | None:
        """Steps after which it changes nothing more; None if it always does, or that is unknown."""
        return _length(self.scheduler)


def schedule_of(given: Any, source: str) -> Schedule:
    """Return what `get_scheduler` of the file `source` returned; ConfigurationError if it is no scheduler of torch."""
    entries = dict(given) if isinstance(given, Mapping) else {"scheduler": given}
    kinds = torch.optim.lr_scheduler
    scheduler, interval = entries.get("scheduler"), entries.get("interval")
    if not isinstance(scheduler, kinds.LRScheduler):
        raise ConfigurationError(
            f"`get_scheduler` of {source} must return a scheduler of torch, such as "
            f"`torch.optim.lr_scheduler.StepLR(optimizer, 10)`. Received: {type(scheduler).__name__}. Correct the "
            "module."
        )
    name, plateaus = type(scheduler).__name__, isinstance(scheduler, kinds.ReduceLROnPlateau)
    unknown = [key for key in entries if key not in _ENTRIES]
    if unknown or interval not in (None, "step", "epoch"):
        received = f"{unknown[0]!r}" if unknown else f"interval={interval!r}"
        raise ConfigurationError(
            f"A dictionary of `get_scheduler` has the entries {', '.join(_ENTRIES)}, and its interval is 'step' or "
            f"'epoch'. Received: {received} with {name} of {source}. Correct the module."
        )
    if plateaus and interval == "step":
        raise ConfigurationError(
            f"{name} steps after an epoch, which has the metric that it needs. Received: interval='step' from "
            f"`get_scheduler` of {source}. Leave the interval out."
        )
    by_step = interval == "step" if interval else any(map(_counts_steps, _each(scheduler)))
    return Schedule(scheduler, by_step, entries.get("monitor"))


def _each(scheduler: Any) -> list[Any]:
    """Return a scheduler and those inside of it."""
    return [scheduler, *(part for inner in getattr(scheduler, "_schedulers", ()) for part in _each(inner))]


def _counts_steps(scheduler: Any) -> bool:
    """Return True for a scheduler that is meant to step after each batch: two of torch, and those of transformers."""
    functions = (getattr(function, "func", function) for function in getattr(scheduler, "lr_lambdas", ()))
    return any(kind.__name__ in _BY_STEP for kind in type(scheduler).__mro__) or any(
        str(getattr(function, "__module__", "")).partition(".")[0] == "transformers" for function in functions
    )


def _length(scheduler: Any) -> int | None:
    if parts := getattr(scheduler, "_schedulers", None):
        lengths = [*map(_length, parts)]
        starts = getattr(scheduler, "_milestones", None)  # of a SequentialLR
        if starts is not None:
            return None if lengths[-1] is None else starts[-1] + lengths[-1] if starts else lengths[-1]
        known = [length for length in lengths if length is not None]
        return max(known) if len(known) == len(lengths) else None
    known = [getattr(scheduler, name) for name in _LENGTHS if hasattr(scheduler, name)]
    known += [max(scheduler.milestones)] if getattr(scheduler, "milestones", None) else []
    for function in getattr(scheduler, "lr_lambdas", ()):
        # Those of transformers are partial functions.
        known += [n for name, n in getattr(function, "keywords", {}).items() if name == "num_training_steps"]
    return int(known[0]) if known else None


def scheduler_of(
    make_optimizer: Callable[[], Any] | None,
    make: MakeScheduler,
    monitor: str | None,
    source: str,
    known: Sequence[str],
) -> EpochCallbacks | None:
    """Return the scheduler of a training for its epochs, None if it counts steps; arguments as of `EpochScheduler`.

    `make_optimizer`: None if an optimizer of this package takes the steps, which no scheduler counts.
    """
    schedule = schedule_of(make((make_optimizer or _stand_in)()), source)
    if not schedule.by_step:
        return EpochScheduler(make_optimizer or _stand_in, make, monitor, source, known)
    if make_optimizer is None:
        instead = spelled("lr_schedule", _BY_STEP.get(str(schedule), "linear"))
        raise ConfigurationError(
            f"A scheduler that counts steps needs the optimizer of `get_optimizer`. Received: {schedule} of {source} "
            f"with another one. Define it and leave `{spelled('optimizer')}` out, or give `{instead}` with "
            f"`{spelled('warmup_epochs')}` in place of `get_scheduler`."
        )
    return None


def _step(scheduler: Any, *metrics: float) -> None:
    """Step once. OneCycleLR keeps the learning rate of its last step, where torch fails."""
    if getattr(scheduler, "total_steps", math.inf) > scheduler.last_epoch + 1:
        scheduler.step(*metrics)


class StepScheduler:
    """A user's scheduler that steps after each step of the optimizer that it is made for.

    Args:
        make: `get_scheduler` of the model module.
        optimizer: optimizer that takes the steps.
        rate: learning rate that an option has set; None for that of the optimizer.

    Raises:
        ConfigurationError: it replaces that learning rate, or has state that no checkpoint can hold.
    """

    def __init__(self, make: MakeScheduler, optimizer: Any, rate: float | None) -> None:
        self._scheduler = schedule_of(make(optimizer), "the model module").scheduler
        if rate is not None and any(float(group["initial_lr"]) != rate for group in optimizer.param_groups):
            raise ConfigurationError(
                f"`{spelled('learning_rate')}` must be left out with a scheduler that sets the learning rate itself. "
                f"Received: {rate!r} with {self}; give `get_scheduler` a parameter for it, which can be searched."
            )
        self.state()

    def __str__(self) -> str:
        return type(self._scheduler).__name__

    def step(self) -> None:
        """Step once."""
        _step(self._scheduler)

    def state(self) -> dict[str, Any]:
        """Return its state as plain data; ConfigurationError if it is anything else."""
        return _state_of(self._scheduler)

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned; the optimizer has its own learning rates."""
        _load_state(self._scheduler, state)


class EpochScheduler:
    """A user's scheduler, which steps after each epoch, with the metrics of all workers.

    It has an optimizer of its own, which takes no steps: the factor of its learning rate is that of the training.

    Args:
        make_optimizer: returns that optimizer.
        make: `get_scheduler` of the model module.
        monitor: metric of ReduceLROnPlateau; None for the validation loss.
        source: file of the module.
        known: names of the metrics of the training.
    """

    def __init__(
        self,
        make_optimizer: Callable[[], Any],
        make: MakeScheduler,
        monitor: str | None,
        source: str,
        known: Sequence[str],
    ) -> None:
        self._make_optimizer, self._make, self._asked = make_optimizer, make, monitor
        self._source, self._known = source, known
        #: initial learning rate of the training
        self._base = 1.0
        self._begin(self._base)

    def __str__(self) -> str:
        return type(self._scheduler).__name__

    def _begin(self, rate: float) -> None:
        self._optimizer = self._make_optimizer()
        groups = self._optimizer.param_groups
        is_replaced = float(groups[0]["lr"]) != rate
        for group in groups:
            group["lr"] = rate if is_replaced else float(group["lr"])
        #: settings of its groups before there is a scheduler
        self._before = [_settings(group) for group in groups]
        self._first = [float(group["lr"]) for group in groups]
        schedule = schedule_of(self._make(self._optimizer), self._source)
        self._scheduler = schedule.scheduler
        self._monitor = self._checked(schedule)
        self._state()

    def _checked(self, schedule: Schedule) -> str | None:
        """Return the metric that the scheduler needs, if any; ConfigurationError if it is not measured."""
        scheduler, name = schedule.scheduler, type(schedule.scheduler).__name__
        if not isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            return None
        asked = schedule.monitor or self._asked or (_MONITOR if scheduler.mode == "min" else None)
        if asked not in self._known:
            raise ConfigurationError(
                f"{name} needs a metric of the training: {', '.join(self._known)}. Received: {asked!r} for "
                f'mode={scheduler.mode!r}. Name one by `get_scheduler.monitor = "..."` in {self._source}.'
            )
        return str(asked)

    def call(
        self,
        adapter: ModelAdapter,
        epoch: int,
        metrics: Mapping[str, float] | None,
        learning_rate: float,
        *,
        is_last: bool,
        state: NDArray[np.uint8] | None = None,
    ) -> CallbackRequests:
        """Step once, see `core.models.adapter.EpochCallbacks`."""
        if metrics is None:
            before = None if state is None else unpacked(state)
            self._base = learning_rate if before is None else before["base"]
            self._begin(self._base)
            if before is not None:
                self._load(before)
        else:
            with warnings.catch_warnings():
                # This optimizer takes no steps.
                warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step")
                _step(self._scheduler, *([] if self._monitor is None else [metrics[self._monitor]]))
        groups = self._optimizer.param_groups
        now = [{key: group[key] for key in before} for group, before in zip(groups, self._before, strict=True)]
        if now != self._before:
            raise TrialError(f"{self} may change learning rates only, but it has changed other settings of a group")
        factors = [float(group["lr"]) / first for group, first in zip(groups, self._first, strict=True)]
        if not np.allclose(factors, factors[0], rtol=1e-6) or not np.isfinite(factors[0]):
            raise TrialError(f"{self} must change the learning rates of all groups alike, not by {factors}")
        return CallbackRequests(learning_rate=self._base * factors[0], state=packed(self._state()))

    def _state(self) -> dict[str, Any]:
        rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        return {"base": self._base, "rates": rates, **_state_of(self._scheduler)}

    def _load(self, before: Mapping[str, Any]) -> None:
        _load_state(self._scheduler, before)
        for group, rate in zip(self._optimizer.param_groups, before["rates"], strict=True):
            group["lr"] = rate


def _state_of(scheduler: Any) -> dict[str, Any]:
    """Return name and state of a scheduler as plain data; ConfigurationError if it has other state."""
    state = plain(scheduler.state_dict())
    check_state(scheduler, state)
    return {"name": type(scheduler).__name__, "state": state}


def _load_state(scheduler: Any, before: Mapping[str, Any]) -> None:
    """Restore what `_state_of` returned."""
    if before["name"] != (name := type(scheduler).__name__):
        raise ConfigurationError(
            f"A training resumes with the scheduler that it began with: {before['name']}. Received: {name}."
        )
    now = vars(scheduler)
    # A `Counter` of milestones, for example, is a dictionary in a checkpoint.
    scheduler.load_state_dict(
        {
            key: type(now[key])(value) if isinstance(value, dict) and isinstance(now.get(key), dict) else value
            for key, value in before["state"].items()
        }
    )


def _stand_in() -> Any:
    """Return an optimizer for a scheduler of a training whose steps an optimizer of this package takes."""
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in ("params", "lr", "initial_lr")}


def check_state(owner: Any, values: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for state of an optimizer or a scheduler that no checkpoint can hold."""
    for name, value in values.items():
        if not is_kept(value):
            raise refusal_of_state(owner, str(name), value)
