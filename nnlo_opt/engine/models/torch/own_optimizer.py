"""Steps of an optimizer of torch on a module, and of its scheduler if that counts them."""

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import torch

from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.models.layout import FloatVector
from nnlo_opt.engine.models.own_optimizer import Instead, Own
from nnlo_opt.engine.models.plain_data import plain
from nnlo_opt.engine.models.torch.schedulers import MakeScheduler, StepScheduler, check_state, schedule_of

_SETTINGS = (FunctionType, BuiltinFunctionType, MethodType, type)
#: most parameters that a remark names
_N_NAMES = 4


def own_of(module: Any, make: Callable[[], Any], make_scheduler: MakeScheduler | None, source: str) -> Own:
    """Return the optimizer of a module, with its scheduler if that counts steps.

    Args:
        make: `get_optimizer` for the module.
        make_scheduler: `get_scheduler`; None if there is none.
        source: file of both.

    Raises:
        ConfigurationError: they return something else than an optimizer and a scheduler of torch.
    """
    optimizer = make()
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
    own = Own(optimizer, words, remark=_remark_on_rest(module, optimizer))
    if make_scheduler is None:
        return own
    # On an optimizer of its own, because making a scheduler changes the learning rates.
    schedule = schedule_of(make_scheduler(make()), source)
    if not schedule.by_step:
        return own
    return replace(own, schedule=str(schedule), n_scheduled=schedule.n_steps, make_scheduler=make_scheduler)


def _remark_on_rest(module: Any, optimizer: Any) -> str:
    """Return a sentence on the trainable parameters of a module that its optimizer does not have; empty if none."""
    taken = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    trained = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    left = [name for name, parameter in trained if id(parameter) not in taken]
    if not left:
        return ""
    more = f" and {len(left) - _N_NAMES} more" if len(left) > _N_NAMES else ""
    return (
        f"`get_optimizer` leaves out {len(left)} of {len(trained)} trainable parameters, which stay as they are: "
        f"{', '.join(left[:_N_NAMES])}{more}."
    )


class TorchSteps:
    """Steps of a torch optimizer on the parameters of a module.

    Args:
        own: optimizer of `get_optimizer`, and its scheduler.
        parameters: trained parameters of the module, views of `memory`.
        memory: all weights (n_weights,).
        instead: options in place of its settings.

    Raises:
        ConfigurationError: it has other parameters, state that no checkpoint can hold, or no setting that an option
            could replace.
    """

    def __init__(self, own: Own, parameters: Sequence[Any], memory: Any, instead: Instead) -> None:
        optimizer = own.optimizer
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
        if instead.no_decay is not None:
            raise ConfigurationError(
                f"`{spelled('no_decay')}` must be left out with an optimizer of torch. Received: {instead.no_decay!r} "
                f"with {type(optimizer).__name__}; give it these parameters in a group with `weight_decay=0`."
            )
        if instead.weight_decay is not None:
            _check_single(optimizer, "weight_decay", "weight_decay", instead.weight_decay)
            for group in optimizer.param_groups:
                group["weight_decay"] = instead.weight_decay
        if (rate := instead.learning_rate) is not None:
            _check_single(optimizer, "learning_rate", "lr", rate)
            self._set([rate] * len(optimizer.param_groups))
        #: None if no scheduler counts the steps
        self._scheduler = None
        if own.make_scheduler is not None:
            self._scheduler = StepScheduler(own.make_scheduler, optimizer, rate)
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
        if self._scheduler is not None:
            self._scheduler.step()
        for parameter in self._parameters:
            parameter.grad = None
        if [parameter.data_ptr() for parameter in self._parameters] != self._places:
            # The optimizer has put other tensors in their place.
            self._memory.copy_(torch.cat([parameter.detach().reshape(-1) for parameter in self._parameters]))
            torch.nn.utils.vector_to_parameters(self._memory, self._parameters)
        given.copy_(self._memory)

    def scale_learning_rate(self, factor: float) -> None:
        if self._scheduler is None:
            self._set([rate * factor for rate in self._rates])
        elif factor != 1:
            raise TrialError(f"{self._scheduler} sets the learning rate, nothing else")

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
            check_state(optimizer, part if isinstance(part, Mapping) else {"state": part})
        check_state(optimizer, state)
        attributes: dict[str, Any] = {}
        if not _is_of_torch(optimizer) and type(optimizer).state_dict is torch.optim.Optimizer.state_dict:
            known = vars(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)).keys()
            own = {name: value for name, value in vars(optimizer).items() if name not in known}
            attributes = {name: plain(value) for name, value in own.items() if not isinstance(value, _SETTINGS)}
            check_state(optimizer, attributes)
        scheduler = {} if self._scheduler is None else {"scheduler": self._scheduler.state()}
        return {"state": state, "attributes": attributes, **scheduler}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._optimizer.load_state_dict(state["state"])
        vars(self._optimizer).update(state["attributes"])
        if self._scheduler is not None:
            self._scheduler.load_state(state["scheduler"])


def _check_single(optimizer: Any, option: str, key: str, value: float) -> None:
    """Raise ConfigurationError if the groups of an optimizer have no single value at `key` for an option to replace."""
    values = {float(group.get(key, math.nan)) for group in optimizer.param_groups}
    if len(values) > 1 or any(map(math.isnan, values)):
        raise ConfigurationError(
            f"`{spelled(option)}` replaces the `{key}` of an optimizer that has one for all parameters. Received: "
            f"{value!r} with {type(optimizer).__name__}; set it in `get_optimizer`, which may take parameters of a "
            "search."
        )


def _is_of_torch(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch"
