"""Checks of training options against ranks, data, search space before a model is built."""

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import combinations, product
from typing import Any

from nnlo_opt.comm.topology import Topology
from nnlo_opt.data.folds import check_workers
from nnlo_opt.errors import ConfigurationError
from nnlo_opt.models import losses
from nnlo_opt.models.builders import ModelDefinition
from nnlo_opt.models.torch import losses as torch_losses
from nnlo_opt.run.options.values import Options
from nnlo_opt.run.workload.findings import Findings
from nnlo_opt.space.parameters import Integer, Real
from nnlo_opt.space.space import TRAIN_PREFIX, Point, Space
from nnlo_opt.space.values import Value, text, thawed
from nnlo_opt.training.options import TrainingOptions, option_name
from nnlo_opt.training.stopping import EarlyStopping, TargetMetric
from nnlo_opt.update_rules.optimizers import make_optimizer
from nnlo_opt.update_rules.registry import RULES
from nnlo_opt.update_rules.rule import UpdateRule
from nnlo_opt.update_rules.staleness import explicit_momentum


def check_training(options: TrainingOptions) -> tuple[EarlyStopping | None, TargetMetric | None]:
    """Raise ConfigurationError for options that are wrong for any model; return the rules for ending a training."""
    make_optimizer(options.optimizer, 1, options.learning_rate, options.optimizer_params)
    options.rule.worker_half(options, 1)
    stopping, target, _ = options.stopping, options.target, options.staleness_policy
    if options.loss:
        for name in map(str.strip, options.loss.split(",")):
            try:
                torch_losses.check_loss(name)
            except ConfigurationError:  # the framework may not be known yet
                losses.check_loss(name)
    return stopping, target


def check_teams(
    topology: Topology, n_masters: int, n: int, options: tuple[str, str] = ("--n-masters", "--n-processes")
) -> None:
    """Raise ConfigurationError if ranks of a team cannot form the groups, with workers of `n` ranks each."""
    of_masters, of_processes = options
    sizes = "ranks and `--block-size`" if of_masters == "--n-masters" else "ranks"
    for team in topology.teams:
        n_ranks = len(team.world_ranks)
        n_left = n_ranks - n_masters
        smallest = n_masters + (n_masters - 1) * n
        if n_masters > 1 and n_ranks < smallest:
            raise ConfigurationError(
                f"`{of_masters}` must leave every sub-master a worker: {n_masters} masters take blocks, or "
                f"sub-blocks, of at least {smallest} ranks. Received: {n_masters} for {n_ranks} "
                f"rank{'s' * (n_ranks > 1)}; take fewer masters or more ranks."
            )
        if n > 1 and (n_left < n or n_left % n):
            master = "master" if n_masters == 1 else f"{n_masters} masters"
            raise ConfigurationError(
                f"`{of_processes}` must divide the ranks behind the {master} of every block or sub-block. Received: "
                f"{n} for {n_left} ranks; choose {sizes} so that it does."
            )


def check_shares(options: Options, topology: Topology, findings: Findings) -> tuple[str, ...]:
    """Raise ConfigurationError for a fold with fewer training samples than workers, or too few for the update rule.

    Args:
        findings: description of model and data.

    Returns:
        A sentence for the user if a batch is larger than the samples of a worker.
    """
    if findings.data is None:
        return ()
    n_workers = max(team.n_workers for team in topology.teams)
    for rule, own in _rules_asked(options, findings):
        rule.check_workers(own, min(n for team in topology.teams for n in team.n_children))
    check_workers(findings.n_train_smallest, n_workers, options.plan.n_fold)
    name, batch, space = "--batch", options.training.batch, findings.space
    if space is not None and "train.batch" in space.names:
        name, batch = "train.batch", max(value for value in corners(space, "train.batch") if isinstance(value, int))
    n_mine = -(-findings.n_train_smallest // (n_workers * options.n_processes))
    if batch <= n_mine:
        return ()
    return (
        f"`{name}` of {batch:,} is more than the {n_mine:,} training samples of a worker: it trains them in one batch, "
        "with one update an epoch. Take a smaller batch for more updates.",
    )


def check_momentum(options: Options, topology: Topology, findings: Findings) -> tuple[str, ...]:
    """Raise ConfigurationError for `--momentum-correction` of a model that makes its own steps.

    Returns:
        A sentence for the user if so many workers alone give the momentum that was asked for, or more.
    """
    training = options.training.for_updates() if findings.trains_itself else options.training
    if not training.momentum_correction:
        return ()
    # Each update makes the gradients under way of all other workers older by a version.
    asked, n_workers = training.optimizer_params["momentum"], min(team.n_children[0] for team in topology.teams)
    if round(explicit_momentum(asked, n_workers - 1), 2):
        return ()
    return (
        f"`--momentum-correction`: the old gradients of {n_workers} workers act as a momentum of "
        f"{1 - 1 / n_workers:.2f}, and {asked:g} was asked for: the optimizer uses none.",
    )


def idle_options(training: TrainingOptions, space: Space | None, *, own: bool = False) -> tuple[str, ...]:
    """Return a sentence that names options without effect at any point of the search; empty if there are none.

    `own`: the model makes its own steps.
    """

    def known(option: str) -> set[Any]:
        name = f"{TRAIN_PREFIX}{option}"
        return {*corners(space, name)} if space is not None and name in space.names else {getattr(training, option)}

    rules, syncs = [RULES[mode] for mode in known("mode")], known("sync_every")
    stepping = [rule.name for rule in RULES.values() if rule.steps_at_workers]
    takes_steps = own or any(rule.steps_at_workers for rule in rules)
    takes_steps = takes_steps or any(isinstance(n, int) and n > 1 for n in syncs)
    # Each model of a composite, and a worker that steps by itself, has the optimizer of the worker if there is one.
    of_worker = None not in known("worker_optimizer")
    named = [not of_worker if own or rule.steps_at_workers else rule.takes_optimizer for rule in rules]
    without = [rule for rule in RULES.values() if not rule.takes_optimizer]
    idle: list[tuple[list[str], str]] = []
    if not any(named):
        others = " or of ".join(["`--worker-optimizer`", *(rule.name for rule in without)])
        idle.append((["optimizer", "optimizer_params"], f"the steps are those of {others}"))
    if not own and not any(rule.takes_optimizer for rule in rules):
        rates = [f"`{option_name(o.name)}` is that of {rule.name}" for rule in rules for o in rule.options if o.is_rate]
        idle.append((["learning_rate"], ", ".join(rates)))
    if not takes_steps:
        reason = f"for `--mode {' or '.join(stepping)}` and `--sync-every` above 1"
        idle.append((["worker_optimizer", "worker_optimizer_params"], reason))
    for rule in RULES.values():
        if rule not in rules:
            idle.append(([option.name for option in rule.options], f"for `--mode {rule.name}`"))
        elif own:
            names = [option.name for option in rule.options if option.is_rate]
            idle.append((names, "the models have `--learning-rate`"))
    said, values, defaults = [], training.to_json(), TrainingOptions().to_json()
    for names, reason in idle:
        given = [f"`{option_name(name)}`" for name in names if values[name] != defaults[name]]
        if given:
            said.append(f"{', '.join(given)} ({reason})")
    return (f"Without effect here: {', '.join(said)}.",) if said else ()


def least_workers(options: Options, findings: Findings) -> int:
    """Return how many workers a master must have for its update rule; `findings` as in `check_shares`."""
    return math.ceil(max((rule.least_workers(own) for rule, own in _rules_asked(options, findings)), default=1))


def _rules_asked(options: Options, findings: Findings) -> list[tuple[UpdateRule, Mapping[str, Any]]]:
    """Return update rules of the training, and of options that are searched, each with values of its options."""
    if findings.data is None:
        return []
    space, given = findings.space, options.training.of_rules
    asked: list[tuple[UpdateRule, Mapping[str, Any]]] = [(options.training.rule, given)]
    for rule in RULES.values():
        for name in (option.name for option in rule.options):
            if space is not None and TRAIN_PREFIX + name in space.names:
                asked += [(rule, {**given, name: value}) for value in corners(space, TRAIN_PREFIX + name)]
    return asked


def check_space(space: Space, definition: ModelDefinition, options: Options) -> None:
    """Raise ConfigurationError for parameters that the model does not take, and for invalid training options.

    A model's argument without a default must be in every point. Of the training options every value is tried at the
    ends of its range. Two of them are also tried together, all other parameters in their middle, unless the space has a
    constraint: it may be what keeps them apart, and its function is not here.
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
                        f"Every point of a search space must give valid training options; {values} does not: {error} "
                        "Give one of the parameters a condition, `condition=When(...)`, or write a function `feasible`."
                    ) from error


def _check_values(space: Space, name: str, options: Options) -> None:
    """Raise ConfigurationError for a value of a training option that fails at every point."""
    known = {name, *_ancestors(space, name)}
    errors: dict[str, tuple[Value, ConfigurationError | None]] = {}
    for point in _corner_points(space, [name]):
        if name not in point:
            continue
        # By itself on top of the command line, and with the other parameters in their middle.
        tried = [{key: value for key, value in point.items() if key in known}, point]
        found = [_error_at(one, options) for one in tried]
        if None in found or text(point[name]) not in errors:
            errors[text(point[name])] = point[name], None if None in found else found[0]
    for value, error in errors.values():
        if error is not None:
            raise ConfigurationError(
                f"Every value of the parameter {name!r} must be one that its option takes; {value!r} is not: {error}"
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
    """Yield points with every end value of `names` and of their conditions; all other parameters have their median."""
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
    """Return values that stand for all: the ends of a range with the values of conditions, or all categories."""
    parameter = space[name]
    if isinstance(parameter, Integer | Real):
        conditions = [other.condition for other in space.parameters if other.condition is not None]
        asked = [thawed(value) for c in conditions if c.parent == name for value in c.values]
        return [*dict.fromkeys([parameter.low, parameter.high, *asked])]
    return [parameter.value_at(index) for index in range(parameter.n_values or 0)]
