"""Chooses the search algorithm for `--hyper-opt auto`, once per run."""

from dataclasses import replace

from nnlo_opt.app.run.options.values import Options
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.search.pruning import FREEZE_THAW
from nnlo_opt.core.trials.identity import StartSettings
from nnlo_opt.core.trials.objectives import DEFAULT
from nnlo_opt.engine.search.registry import AUTO, is_grid, search_names

#: algorithm where trials cannot be paused
_WHOLE_TRIALS = "bayesian"
#: fewest epochs of a training that can be paused
_LEAST_EPOCHS = 2


class Choice(Frozen):
    """Chosen search algorithm, and the reason."""

    algorithm: str
    #: clause after "as"
    because: str


def chosen(options: Options, findings: Findings) -> Choice:
    """Return freeze-thaw if trials report epochs and can be paused, else bayesian.

    Args:
        options: options with `auto`; a pruner in its plan was given by the user, unless it is freeze-thaw's.
        findings: findings about the model or the objective.
    """
    plan, comparison = options.plan.pruning, options.comparison
    epochs = options.training.epochs
    if findings.is_objective or "train.epochs" in findings.search_space.names:
        epochs = 0
    if plan is not None:
        epochs = plan.max_epochs or epochs
    why_not = ""
    if plan is not None and plan.name != FREEZE_THAW:
        why_not = f"{plan.shown} is given"
    elif comparison.several:
        why_not = f"{len(comparison.several)} objectives are compared"
    elif not findings.pauses:
        what = "an objective without `checkpoint`" if options.command is None else "a command without `{checkpoint}`"
        why_not = f"{what} cannot be paused"
    elif not comparison.is_of_epochs:
        why_not = f"{comparison.function or comparison.objectives[0].name} is not measured after every epoch"
    elif findings.figure == "loss" and comparison.objectives == (DEFAULT,):
        why_not = "there are no validation data"
    elif not epochs:
        why_not = f"the epochs of a whole training are not known without `{spelled('pruner_max_epochs')}`"
    elif epochs < _LEAST_EPOCHS:
        why_not = "a training has one epoch"
    if why_not:
        return Choice(algorithm=_WHOLE_TRIALS, because=why_not)
    return Choice(algorithm=FREEZE_THAW, because=f"trials report up to {epochs} epochs and can be paused")


def resumed(settings: StartSettings) -> Choice:
    """Return the algorithm of the last start of a run; ConfigurationError for a custom one, unknown to us."""
    known = settings.hyper_opt
    if known not in search_names() or is_grid(known):
        raise ConfigurationError(
            f"`{spelled('hyper_opt', AUTO)}` continues with the algorithm of the run, if that needs only its name. "
            f"Received: a run by {known or 'an unknown one'}. Name it by `{spelled('hyper_opt')}`."
        )
    return Choice(algorithm=known, because=settings.hyper_opt_because or "the run has begun with it")


def without_effect(options: Options, choice: Choice) -> str:
    """Return a remark on options of freeze-thaw that have no effect; empty if there are none."""
    plan = options.plan.pruning
    if plan is None or plan.name != FREEZE_THAW or choice.algorithm == FREEZE_THAW:
        return ""
    given = {spelled("pruner_max_epochs"): plan.max_epochs, spelled("pruner_min_epochs"): plan.min_epochs}
    names = [f"`{name}`" for name, value in given.items() if value]
    return f"Without effect here: {', '.join(names)} ({choice.algorithm} pauses no trials)." if names else ""


def with_choice(options: Options, choice: Choice) -> Options:
    """Return the options as if the user had given the chosen algorithm, with its pruner."""
    plan = options.plan.pruning
    if plan is not None and plan.name == FREEZE_THAW and choice.algorithm != FREEZE_THAW:
        plan = None
    return replace(
        options,
        search=replace(options.search, algorithm=choice.algorithm),
        plan=replace(options.plan, pruning=plan),
        hyper_opt_because=choice.because,
    )
