"""Checks training options, in general and at points of a search space."""

from collections.abc import Iterable, Iterator
from itertools import combinations, product
from typing import Any

from nnlo_opt.app.run.options.values import Options
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.spelling import either, spelled
from nnlo_opt.core.space.parameters import Integer, Real
from nnlo_opt.core.space.space import TRAIN_PREFIX, Point, Space
from nnlo_opt.core.space.values import Value, text, thawed
from nnlo_opt.core.training.options import TrainingOptions, searchable
from nnlo_opt.core.training.stopping import EarlyStopping, TargetMetric
from nnlo_opt.core.update_rules.optimizers import OPTIMIZERS, make_optimizer
from nnlo_opt.core.update_rules.rule import UpdateRule
from nnlo_opt.engine.models import losses
from nnlo_opt.engine.models.builders import TrialDefinition
from nnlo_opt.engine.models.torch import losses as torch_losses
from nnlo_opt.engine.search.custom import check_halves


def check_training(options: TrainingOptions) -> tuple[EarlyStopping | None, TargetMetric | None]:
    """Raise ConfigurationError for options that are invalid for any model; return the stopping rules."""
    make_optimizer(options.optimizer, 1, options.learning_rate, options.optimizer_params)
    check_halves(options)
    if options.loss:
        for name in map(str.strip, options.loss.split(",")):
            try:
                torch_losses.check_loss(name)
            except ConfigurationError:  # the framework may not be known yet
                losses.check_loss(name)
    return options.stopping, options.target


def check_space(space: Space, definition: TrialDefinition, options: Options) -> None:
    """Raise ConfigurationError for parameters that the model does not take, and for invalid training options.

    A model's argument without a default must be in every point. Searched training options are checked at the ends of
    their ranges, singly and in pairs, with all other parameters in their middle. Pairs are skipped if the space has a
    constraint, which may exclude them but cannot be evaluated here.
    """
    definition.check_parameters(space.model_names)
    for name in sorted(definition.required_parameters):
        if (condition := space[name].condition) is not None:
            raise ConfigurationError(
                f"A parameter with a condition must have a default in `get_model` of {definition.source}. "
                f"Received: none for {name!r}, which is given only when {condition}. Add the default."
            )
    for name in space.train_names:
        _check_values(space, name, options)
    if space.constraint is None:
        for pair in combinations(space.train_names, 2):
            for point in _corner_points(space, pair):
                error = _error_at(point, options)
                if error is not None:
                    values = ", ".join(f"{k}={v!r}" for k, v in point.items() if k.startswith(TRAIN_PREFIX))
                    raise ConfigurationError(
                        f"Every point of a search space must give valid training {either('options', 'arguments')}; "
                        f"{values} does not: {error} "
                        "Give one of the parameters a condition, `condition=When(...)`, or write a function `feasible`."
                    ) from error


def _check_values(space: Space, name: str, options: Options) -> None:
    """Raise ConfigurationError for a value of a training option that fails at every point."""
    known = {name, *_ancestors(space, name)}
    errors: dict[str, tuple[Value, ConfigurationError | None]] = {}
    for point in _corner_points(space, [name]):
        if name not in point:
            continue
        # Alone on top of the command line, and with the other parameters in their middle.
        tried = [{key: value for key, value in point.items() if key in known}, point]
        found = [_error_at(one, options) for one in tried]
        if None in found or text(point[name]) not in errors:
            errors[text(point[name])] = point[name], None if None in found else found[0]
    for value, error in errors.values():
        if error is not None:
            raise ConfigurationError(
                f"Every value of the parameter {name!r} must be one that its {either('option', 'argument')} takes; "
                f"{value!r} is not: {error}"
            ) from error


def _error_at(point: Point, options: Options) -> ConfigurationError | None:
    try:
        training = options.training.with_point(point)
        training.rule.check_groups(options.n_masters, options.n_processes)
        check_training(training)
    except ConfigurationError as error:
        return error
    return None


def _corner_points(space: Space, names: Iterable[str]) -> Iterator[Point]:
    """Yield points with all end values of `names` and their conditions; all other parameters have their median."""
    varied = {name for given in names for name in (given, *_ancestors(space, given))}
    quantiles = [
        [p.to_unit(value) for value in corners(space, p.name)] if p.name in varied else [0.5] for p in space.parameters
    ]
    return (space.from_unit(units) for units in product(*quantiles))


def _ancestors(space: Space, name: str) -> list[str]:
    found: list[str] = []
    while (condition := space[name].condition) is not None:
        name = condition.parent
        found.append(name)
    return found


def corners(space: Space, name: str) -> list[Value]:
    """Return representative values: the ends of a range and the values in conditions, or all categories."""
    parameter = space[name]
    if isinstance(parameter, Integer | Real):
        conditions = [other.condition for other in space.parameters if other.condition is not None]
        asked = [thawed(value) for c in conditions if c.parent == name for value in c.values]
        return [*dict.fromkeys([parameter.low, parameter.high, *asked])]
    return [parameter.value_at(index) for index in range(parameter.n_values or 0)]


#: options besides the optimizer and its rate that decide whether these are used
_OF_STEPS = ("optimizer_params", "worker_optimizer", "worker_optimizer_params", "sync_every")


def _other_rate(training: TrainingOptions, rules: Iterable[UpdateRule]) -> str:
    """Describe what determines the steps instead of `--learning-rate`."""
    for name in ("optimizer_params", "worker_optimizer_params"):
        if {"lr", "learning_rate"} & getattr(training, name).keys():
            return f"`{spelled(name)}` has one"
    of_rules = [f"`{spelled(o.name)}` is that of {rule.name}" for rule in rules for o in rule.options if o.is_rate]
    return ", ".join(of_rules) or f"the steps are those of {' or of '.join(rule.name for rule in rules)}"


def idle_options(
    training: TrainingOptions, space: Space | None, *, own: bool = False, brings_optimizer: bool = False
) -> tuple[str, ...]:
    """Return a remark on options without effect at any point of the search; empty if there are none.

    Args:
        own: True if the model trains itself.
        brings_optimizer: True if the model brings an optimizer, whose weights may decay.
    """
    said, values, defaults = [], training.to_json(), TrainingOptions().to_json()
    groups = _idle(training, space, own=own)
    if brings_optimizer:
        groups = [(names, reason) for names, reason in groups if names != ["no_decay"]]
    for names, reason in groups:
        given = [f"`{spelled(name)}`" for name in names if values[name] != defaults[name]]
        if given:
            said.append(f"{', '.join(given)} ({reason})")
    return (f"Without effect here: {', '.join(said)}.",) if said else ()


def idle_names(training: TrainingOptions, findings: Findings) -> list[str]:
    """Return the names of all options without effect on the steps, given or not."""
    space, own = findings.space, findings.trains_itself
    names = {name for group, _ in _idle(training, space, own=own) for name in group}
    if (space is None or not space.train_names) and not training.steps_by(own=own):
        names |= {"optimizer", "optimizer_params"}  # which may still define a learning rate
    return sorted(names)


def _idle(training: TrainingOptions, space: Space | None, *, own: bool) -> list[tuple[list[str], str]]:
    """Return groups of options without effect at any point, each with the reason."""

    def known(option: str) -> set[Any]:
        name = f"{TRAIN_PREFIX}{option}"
        return {*corners(space, name)} if space is not None and name in space.names else {getattr(training, option)}

    def takes(mode: str, name: str) -> bool:
        """Return True if the option may have an effect on the steps."""
        return (varies and training.rules[mode].takes_optimizer) or training.has_effect(name, mode)

    def maker(mode: str) -> str:
        """Describe what makes the steps; "" if it is `--optimizer`."""
        # Each model of a composite, and a worker with local steps, uses the worker's optimizer if there is one.
        if of_worker and (own or training.rules[mode].steps_at_workers):
            return f"`{spelled('worker_optimizer')}`"
        return "" if own or takes(mode, "optimizer") else training.rules[mode].name

    modes, syncs = sorted(known("mode")), known("sync_every")
    rules = [training.rules[mode] for mode in modes]
    searched = () if space is None else space.train_names
    varies = any(searchable(name).partition(".")[0] in (*_OF_STEPS, *training.of_rules) for name in searched)
    stepping = [rule.name for rule in training.rules.values() if rule.steps_at_workers]
    takes_steps = own or any(rule.steps_at_workers for rule in rules)
    takes_steps = takes_steps or any(isinstance(n, int) and n > 1 for n in syncs)
    of_worker = None not in known("worker_optimizer")
    makers = [maker(mode) for mode in modes]
    idle: list[tuple[list[str], str]] = []
    if all(makers):
        reason = f"the steps are those of {' or of '.join(dict.fromkeys(makers))}"
        idle.append((["optimizer", "optimizer_params"], reason))
    if not own and not any(takes(mode, "learning_rate") for mode in modes):
        idle.append((["learning_rate"], _other_rate(training, rules)))
    if not own and not any(takes(mode, "weight_decay") for mode in modes):
        idle.append((["weight_decay"], f"the steps are those of {' or of '.join(rule.name for rule in rules)}"))
    optimizers = [OPTIMIZERS.get(name) for name in known("optimizer") | known("worker_optimizer")]
    if known("weight_decay") <= {None, 0.0} and not any(o and "weight_decay" in o.parameters for o in optimizers):
        idle.append((["no_decay"], f"for `{spelled('weight_decay')}`"))
    if not takes_steps:
        reason = f"for `{spelled('mode', ' or '.join(stepping))}` and `{spelled('sync_every')}` above 1"
        idle.append((["worker_optimizer", "worker_optimizer_params"], reason))
    for rule in training.rules.values():
        if rule not in rules:
            idle.append(([option.name for option in rule.options], f"for `{spelled('mode', rule.name)}`"))
        elif own:
            names = [option.name for option in rule.options if option.is_rate]
            idle.append((names, f"the models have `{spelled('learning_rate')}`"))
    return idle
