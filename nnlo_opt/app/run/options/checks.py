"""Checks options against the number of ranks."""

import math
from collections.abc import Mapping
from typing import Any

from nnlo_opt.app.run.options.space_checks import corners
from nnlo_opt.app.run.options.values import Options
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.data.folds import check_workers
from nnlo_opt.core.space.space import TRAIN_PREFIX
from nnlo_opt.core.update_rules.registry import RULES
from nnlo_opt.core.update_rules.rule import UpdateRule
from nnlo_opt.core.update_rules.staleness import explicit_momentum


def check_teams(topology: Topology, n_masters: int, n: int, arguments: tuple[str, str] | None = None) -> None:
    """Raise ConfigurationError if the ranks of a team cannot form its groups and workers.

    `arguments`: names of both numbers for messages; the options by default.
    """
    of_masters, of_processes = arguments or (spelled("n_masters"), spelled("n_processes"))
    sizes = "ranks" if arguments else f"ranks and `{spelled('block_size')}`"
    for team in topology.teams:
        n_ranks = len(team.world_ranks)
        n_left = n_ranks - n_masters
        smallest = n_masters + (n_masters - 1) * n
        if n_masters > 1 and n_ranks < smallest:
            raise ConfigurationError(
                f"`{of_masters}` must leave every sub-master a worker: {n_masters} masters take blocks, or "
                f"sub-blocks, of at least {smallest} ranks. Received: {n_masters} for {n_ranks} "
                f"rank{'s' * (n_ranks > 1)}; use fewer masters or more ranks."
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
        A remark for the user if a batch is larger than the samples of a worker.
    """
    if findings.data is None:
        return ()
    n_workers = max(team.n_workers for team in topology.teams)
    for rule, own in _rules_asked(options, findings):
        rule.check_workers(own, min(n for team in topology.teams for n in team.n_children))
    what = "batch" if findings.counts_batches else "sample"
    check_workers(findings.n_train_smallest, n_workers, options.plan.n_fold, what)
    name, batch, space = spelled("batch"), options.training.batch, findings.space
    if space is not None and "train.batch" in space.names:
        name, batch = "train.batch", max(value for value in corners(space, "train.batch") if isinstance(value, int))
    n_mine = -(-findings.n_train_smallest // (n_workers * options.n_processes))
    if batch <= n_mine or findings.counts_batches:
        return ()
    return (
        f"`{name}` of {batch:,} is more than the {n_mine:,} training samples of a worker: it trains them in one "
        "batch, with one update an epoch. Use a smaller batch for more updates.",
    )


def check_momentum(options: Options, topology: Topology, findings: Findings) -> tuple[str, ...]:
    """Raise ConfigurationError for `--momentum-correction` with a model that trains itself.

    Returns:
        A remark for the user if the staleness from this many workers alone adds the requested momentum or more.
    """
    training = options.training.for_updates() if findings.trains_itself else options.training
    if not training.momentum_correction:
        return ()
    # Each update makes the current gradients of all other workers one version older.
    asked, n_workers = training.optimizer_params["momentum"], min(team.n_children[0] for team in topology.teams)
    if round(explicit_momentum(asked, n_workers - 1), 2):
        return ()
    return (
        f"`{spelled('momentum_correction', True)}`: the old gradients of {n_workers} workers act as a momentum of "
        f"{1 - 1 / n_workers:.2f}, no less than the {asked:g} asked for: the optimizer uses none.",
    )


def least_workers(options: Options, findings: Findings) -> int:
    """Return the fewest workers per master that the update rule needs; `findings` as in `check_shares`."""
    return math.ceil(max((rule.least_workers(own) for rule, own in _rules_asked(options, findings)), default=1))


def _rules_asked(options: Options, findings: Findings) -> list[tuple[UpdateRule, Mapping[str, Any]]]:
    """Return the update rules of the training and of searched options, each with values of its options."""
    if findings.data is None:
        return []
    space, given = findings.space, options.training.of_rules
    asked: list[tuple[UpdateRule, Mapping[str, Any]]] = [(options.training.rule, given)]
    for rule in RULES.values():
        for name in (option.name for option in rule.options):
            if space is not None and TRAIN_PREFIX + name in space.names:
                asked += [(rule, {**given, name: value}) for value in corners(space, TRAIN_PREFIX + name)]
    return asked
