"""Giving up trials early: the options, and what they make."""

import argparse

from nnlo_opt.cli.values import whole
from nnlo_opt.errors import ConfigurationError
from nnlo_opt.search.pruning import PRUNERS, PruningPlan
from nnlo_opt.search.racing import MIN_FOLDS
from nnlo_opt.trials.objectives import Comparison

#: which pruner takes which of the options of `PruningPlan`
_PRUNER_TAKES = {"eta": ("asha", "hyperband"), "max_epochs": ("asha", "hyperband"), "min_trials": ("median",)}


def add_pruning(parser: argparse.ArgumentParser) -> None:
    """The options of `pruning_of` and `fold_racing_of`."""
    group = parser.add_argument_group("giving up trials early")
    group.add_argument(
        "--pruner",
        metavar="NAME",
        choices=("none", *PRUNERS),
        default="none",
        help="none; median: give up what is worse than the median of the others at the same epoch; asha: pause all but "
        "the best at rungs of more and more epochs, and go on with them when they are among the best; hyperband: the "
        "same with several first rungs (default: %(default)s)",
    )
    group.add_argument(
        "--pruner-eta",
        metavar="N",
        type=whole(2),
        help="asha, hyperband: one trial in N goes past a rung, and the next has N times its epochs (default: 3)",
    )
    group.add_argument(
        "--pruner-min-epochs",
        metavar="EPOCHS",
        type=whole(unit="epochs"),
        help="that every trial is given: the first rung, or from which epoch on the median rule looks (default: 1)",
    )
    group.add_argument(
        "--pruner-min-trials",
        metavar="TRIALS",
        type=whole(unit="trials"),
        help="median: others that must have come as far (default: 4)",
    )
    group.add_argument(
        "--pruner-max-epochs",
        metavar="EPOCHS",
        type=whole(unit="epochs"),
        help="asha, hyperband: epochs of a whole training, of which the rungs are fractions (default: --epochs)",
    )
    group.add_argument(
        "--fold-racing",
        action="store_true",
        help="give up a trial whose first folds, 2 at least, are worse than those of the best one (paired t-test, "
        "p < 0.05)",
    )


def pruning_of(arguments: argparse.Namespace, comparison: Comparison) -> PruningPlan | None:
    """What `--pruner` and its options ask for; ConfigurationError."""
    name = arguments.pruner
    values = {option: getattr(arguments, f"pruner_{option}") for option in ("min_epochs", *_PRUNER_TAKES)}
    given = {option: value for option, value in values.items() if value is not None}
    for option in given:
        takers = _PRUNER_TAKES.get(option, PRUNERS)
        if name not in takers:
            raise ConfigurationError(
                f"`--pruner-{option.replace('_', '-')}` is for `--pruner {'` or `'.join(takers)}`. Received: it with "
                f"`--pruner {name}`; leave it out."
            )
    if name == "none":
        return None
    _check_one(f"--pruner {name}", comparison)
    return PruningPlan(name=name, **given)


def fold_racing_of(arguments: argparse.Namespace, comparison: Comparison) -> bool:
    """Whether `--fold-racing` was asked for; ConfigurationError."""
    if arguments.fold_racing:
        _check_one("--fold-racing", comparison)
    if arguments.fold_racing and arguments.n_fold <= MIN_FOLDS:
        raise ConfigurationError(
            f"`--fold-racing` looks at a trial after {MIN_FOLDS} folds, so `--n-fold` must be at least "
            f"{MIN_FOLDS + 1}. Received: {arguments.n_fold}."
        )
    return bool(arguments.fold_racing)


def _check_one(option: str, comparison: Comparison) -> None:
    if comparison.several:
        raise ConfigurationError(
            f"`{option}` gives up trials by one objective, of which the worst may be the best in another. Received: it "
            f"with {len(comparison.several)} objectives; leave it out, or all of `--objective` but one."
        )
