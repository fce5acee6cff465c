"""Steps of an optimizer of torch on a module, and its schedulers, which step once an epoch."""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.models.adapter import CallbackRequests, ModelAdapter
from nnlo_opt.core.models.layout import FloatVector
from nnlo_opt.engine.models.own_optimizer import Own, refusal_of_state
from nnlo_opt.engine.models.plain_data import is_kept, packed, plain, unpacked

_SETTINGS = (FunctionType, BuiltinFunctionType, MethodType, type)
#: schedulers that count batches, with what does the same
_BY_BATCH = {"OneCycleLR": "one-cycle", "CyclicLR": "cosine"}
#: metric of ReduceLROnPlateau, unless `get_scheduler.monitor` names another
_MONITOR = "val_loss"


def own_of(optimizer: Any, source: str) -> Own:
    """Return what `get_optimizer` of the file `source` returned; ConfigurationError if it is no optimizer of torch."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise ConfigurationError(
            f"`get_optimizer` of {source} must return an optimizer of torch, such as `torch.optim.AdamW("
            f"module.parameters())`. Received: {type(optimizer).__name__}. Correct the module."
        )
    taken = inspect.signature(type(optimizer)).parameters
    shown = {
        key: value
        for key, value in optimizer.defaults.items()
        if isinstance(value, bool | int | float | str | tuple)
        and (key == "lr" or (key in taken and value != taken[key].default))
    }
    words = f"{type(optimizer).__name__}({', '.join(f'{key}={value!r}' for key, value in shown.items())})"
    return Own(optimizer, words)


class TorchSteps:
    """Steps of a torch optimizer on the parameters of a module.

    Args:
        optimizer: return value of `get_optimizer`.
        parameters: trained parameters of the module, views of `memory`.
        memory: all weights (n_weights,).
        rate: learning rate in place of its own; None to keep it.

    Raises:
        ConfigurationError: it has other parameters, or state that no checkpoint can hold.
    """

    def __init__(self, optimizer: Any, parameters: Sequence[Any], memory: Any, *, rate: float | None) -> None:
        self._optimizer, self._parameters, self._memory = optimizer, parameters, memory
        trained = {id(parameter) for parameter in parameters}
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.requires_grad and id(parameter) not in trained:
                    raise ConfigurationError(
                        "An optimizer must have parameters of its module. Received: one of shape "
                        f"{tuple(parameter.shape)} of {type(optimizer).__name__} that the module does not have. "
                        "Register it in the module."
                    )
        if rate is not None:
            if len({float(group["lr"]) for group in optimizer.param_groups}) > 1:
                raise ConfigurationError(
                    f"`{spelled('learning_rate')}` must be left out with an optimizer of several learning rates. "
                    f"Received: {rate!r} with {type(optimizer).__name__}; set them in `get_optimizer`."
                )
            self._set([rate] * len(optimizer.param_groups))
        #: initial learning rates of the groups
        self._rates = [float(group["lr"]) for group in optimizer.param_groups]
        self.learning_rate = self._rates[0]
        self._sizes = [parameter.numel() for parameter in parameters]
        self._places = [parameter.data_ptr() for parameter in parameters]
        self.state()

    def step(self, weights: FloatVector, gradient: FloatVector) -> None:
        given = torch.from_numpy(weights)
        self._memory.copy_(given)
        # A copy, as an optimizer may keep gradients.
        slopes = torch.tensor(gradient, device=self._memory.device).split(self._sizes)
        for parameter, slope in zip(self._parameters, slopes, strict=True):
            parameter.grad = slope.view_as(parameter)
        self._optimizer.step()
        for parameter in self._parameters:
            parameter.grad = None
        if [parameter.data_ptr() for parameter in self._parameters] != self._places:
            # The optimizer has put other tensors in their place.
            self._memory.copy_(torch.cat([parameter.detach().reshape(-1) for parameter in self._parameters]))
            torch.nn.utils.vector_to_parameters(self._memory, self._parameters)
        given.copy_(self._memory)

    def scale_learning_rate(self, factor: float) -> None:
        self._set([rate * factor for rate in self._rates])

    def _set(self, rates: Sequence[float]) -> None:
        for group, rate in zip(self._optimizer.param_groups, rates, strict=True):
            if torch.is_tensor(group["lr"]):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def state(self) -> dict[str, Any]:
        optimizer = self._optimizer
        state = plain(optimizer.state_dict())
        for part in (*state.get("state", {}).values(), *state.get("param_groups", ())):
            _check(optimizer, part if isinstance(part, Mapping) else {"state": part})
        _check(optimizer, state)
        attributes: dict[str, Any] = {}
        if not _is_of_torch(optimizer) and type(optimizer).state_dict is torch.optim.Optimizer.state_dict:
            known = vars(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)).keys()
            own = {name: value for name, value in vars(optimizer).items() if name not in known}
            attributes = {name: plain(value) for name, value in own.items() if not isinstance(value, _SETTINGS)}
            _check(optimizer, attributes)
        return {"state": state, "attributes": attributes}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._optimizer.load_state_dict(state["state"])
        vars(self._optimizer).update(state["attributes"])


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
        make: Callable[[Any], Any],
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
        self._before = [_settings(group) for group in self._optimizer.param_groups]
        self._first = [float(group["lr"]) for group in self._optimizer.param_groups]
        self._scheduler = self._make(self._optimizer)
        self._monitor = self._checked()
        self._state()

    def _checked(self) -> str | None:
        """Return the metric that the scheduler needs, if any; ConfigurationError for one that cannot act here."""
        scheduler, name = self._scheduler, type(self._scheduler).__name__
        kinds = torch.optim.lr_scheduler
        if not isinstance(scheduler, kinds.LRScheduler):
            raise ConfigurationError(
                f"`get_scheduler` of {self._source} must return a scheduler of torch, such as "
                f"`torch.optim.lr_scheduler.StepLR(optimizer, 10)`. Received: {name}. Correct the module."
            )
        of_transformers = any(
            getattr(getattr(function, "func", function), "__module__", "").partition(".")[0] == "transformers"
            for function in getattr(scheduler, "lr_lambdas", ())
        )
        by_batch = next((kind.__name__ for kind in type(scheduler).__mro__ if kind.__name__ in _BY_BATCH), "")
        if by_batch or of_transformers:
            instead = spelled("lr_schedule", _BY_BATCH.get(by_batch, "linear"))
            raise ConfigurationError(
                f"A scheduler steps once an epoch here. Received: {name} of {self._source}, which counts batches. Give "
                f"`{instead}` with `{spelled('warmup_epochs')}` in its place."
            )
        if not isinstance(scheduler, kinds.ReduceLROnPlateau):
            return None
        asked = self._asked or (_MONITOR if scheduler.mode == "min" else None)
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
                self._scheduler.step(*([] if self._monitor is None else [metrics[self._monitor]]))
        if [_settings(group) for group in self._optimizer.param_groups] != self._before:
            raise TrialError(f"{self} may change learning rates only, but it has changed other settings of a group")
        factors = [
            float(group["lr"]) / first for group, first in zip(self._optimizer.param_groups, self._first, strict=True)
        ]
        if not np.allclose(factors, factors[0], rtol=1e-6) or not np.isfinite(factors[0]):
            raise TrialError(f"{self} must change the learning rates of all groups alike, not by {factors}")
        return CallbackRequests(learning_rate=self._base * factors[0], state=packed(self._state()))

    def _state(self) -> dict[str, Any]:
        state = plain(self._scheduler.state_dict())
        _check(self._scheduler, state)
        rates = [float(group["lr"]) for group in self._optimizer.param_groups]
        return {"name": str(self), "base": self._base, "rates": rates, "state": state}

    def _load(self, before: Mapping[str, Any]) -> None:
        if before["name"] != str(self):
            raise ConfigurationError(
                f"A training resumes with the scheduler that it began with: {before['name']}. Received: {self}."
            )
        now = vars(self._scheduler)
        # A `Counter` of milestones, for example, is a dictionary in a checkpoint.
        state = {
            name: type(now[name])(value) if isinstance(value, dict) and isinstance(now.get(name), dict) else value
            for name, value in before["state"].items()
        }
        self._scheduler.load_state_dict(state)
        for group, rate in zip(self._optimizer.param_groups, before["rates"], strict=True):
            group["lr"] = rate


def stand_in() -> Any:
    """Return an optimizer for a scheduler of a training whose steps an optimizer of this package takes."""
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


def _settings(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in ("params", "lr", "initial_lr")}


def _check(owner: Any, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if not is_kept(value):
            raise refusal_of_state(owner, str(name), value)


def _is_of_torch(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch"
