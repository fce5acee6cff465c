"""Pruning options, and their checks against other options and the model."""

from dataclasses import replace
from types import SimpleNamespace

from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.search.pruning import FREEZE_THAW, PRUNERS, PruningPlan
from nnlo_opt.core.search.racing import MIN_FOLDS
from nnlo_opt.core.trials.objectives import DEFAULT, Comparison
from nnlo_opt.engine.search.custom import custom_name
from nnlo_opt.engine.search.registry import AUTO

#: options of `PruningPlan` -> pruners that have them
_PRUNER_TAKES = {
    "eta": ("asha", "hyperband"),
    "max_epochs": ("asha", "hyperband", FREEZE_THAW),
    "min_trials": ("median",),
    "min_epochs": (*PRUNERS, FREEZE_THAW),
}


def pruning_plan(values: SimpleNamespace, comparison: Comparison) -> PruningPlan | None:
    """Return the plan of `--pruner`, as far as known without the model; None without a pruner.

    `auto` without a pruner has freeze-thaw's plan until it is known what the trials support.
    """
    plan, is_chosen = PruningPlan(name=custom_name(values.pruner)), values.hyper_opt == AUTO
    if values.hyper_opt == FREEZE_THAW or (is_chosen and plan.name == "none"):
        if plan.name != "none":
            raise ConfigurationError(
                f"`{spelled('hyper_opt', FREEZE_THAW)}` decides itself which trials continue. Received: {plan.shown} "
                "beside it; leave out one of them."
            )
        plan = PruningPlan(name=FREEZE_THAW, min_epochs=0)
    options = {option: getattr(values, f"pruner_{option}") for option in _PRUNER_TAKES}
    given = {option: value for option, value in options.items() if value is not None}
    for option in given:
        if plan.name not in _PRUNER_TAKES[option]:
            asked = f"`{spelled('hyper_opt', AUTO)}`" if is_chosen and plan.name == FREEZE_THAW else plan.shown
            takers = " or ".join(PruningPlan(name=name).shown for name in _PRUNER_TAKES[option])
            raise ConfigurationError(
                f"`{spelled(f'pruner_{option}')}` is for {takers}. Received: {asked}; leave it out."
            )
    if plan.name == "none":
        return None
    if plan.name != FREEZE_THAW or not is_chosen:
        _check_one(plan.option, comparison)
    return replace(plan, **given)


def check_fold_racing(values: SimpleNamespace, comparison: Comparison) -> None:
    """Raise ConfigurationError if `--fold-racing` cannot compare trials by their first folds."""
    _check_one(spelled("fold_racing", True), comparison)
    if values.n_fold <= MIN_FOLDS:
        raise ConfigurationError(
            f"`{spelled('fold_racing', True)}` looks at a trial after {MIN_FOLDS} folds, so `{spelled('n_fold')}` "
            f"must be at least {MIN_FOLDS + 1}. Received: {values.n_fold}."
        )


def _check_one(option: str, comparison: Comparison) -> None:
    if comparison.several:
        raise ConfigurationError(
            f"`{option}` stops trials by one objective, and the worst in that may be the best in another. Received: "
            f"{len(comparison.several)} objectives. Drop `{option}`, or keep one `{spelled('objective')}`."
        )


def pruning_for(plan: PruningPlan, comparison: Comparison, epochs: int, findings: Findings) -> PruningPlan:
    """Return the plan for this model or objective; ConfigurationError if its epochs cannot be compared."""
    is_objective = findings.is_objective
    if not comparison.is_of_epochs:
        what = comparison.function or comparison.objectives[0].name
        raise ConfigurationError(
            f"`{plan.option}` needs a figure of merit that is measured after every epoch. Received: {plan.shown} with "
            f"{what}; compare trials by a metric (`{spelled('objective', 'val_loss:min')}`), or leave it out."
        )
    if findings.figure == "loss" and comparison.objectives == (DEFAULT,):
        raise ConfigurationError(
            f"`{plan.option}` compares the validation of trials after each epoch. Received: {plan.shown} without "
            f"validation data; give `{spelled('val_data')}`, or leave it out."
        )
    if not is_objective and "train.epochs" not in findings.search_space.names:
        plan = replace(plan, max_epochs=plan.max_epochs or epochs)
    if plan.is_own:  # it may stop trials, but not pause them
        return replace(plan, pauses=False)
    if plan.name in ("hyperband", FREEZE_THAW) and plan.max_epochs is None:
        raise ConfigurationError(
            f"{plan.shown} must know the epochs of a whole training. Received: "
            f"{'an objective' if is_objective else 'a search space with train.epochs'}; give "
            f"`{spelled('pruner_max_epochs')}`."
        )
    check_rungs(plan)
    return replace(plan, pauses=findings.pauses)


def check_rungs(plan: PruningPlan) -> None:
    """Raise ConfigurationError if a training has too few epochs for a built-in pruner to prune."""
    halves = plan.name in ("asha", "hyperband")
    least = plan.min_epochs * plan.eta if halves else plan.min_epochs + 1
    if plan.max_epochs is not None and plan.max_epochs < least:
        smaller = [f"`{spelled(name)}`" for name in ("pruner_min_epochs", *["pruner_eta"] * halves)]
        raise ConfigurationError(
            f"{plan.shown} needs {least} epochs at least to stop a trial before its last one. Received: "
            f"{plan.max_epochs}; raise `{spelled('epochs')}`, or lower {' or '.join(smaller)}."
        )
