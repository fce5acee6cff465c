"""What a model says of its own training, and what of it holds beside the options of a run.

A framework reads it off a model (`engine.models.keras.compiled`). An option that is given or searched replaces it, and
it replaces the default of an option. What does not hold is named to the user.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.space.space import TRAIN_PREFIX
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.core.update_rules.optimizers import OPTIMIZERS
from nnlo_opt.engine.models.losses import LossRequest, LossTerm, WeightRequest, fold, losses_in_words, request_in_words

#: said in a search, whose trials may have other values
_OF_EACH = " of each trial, here at the middle of the search space"
#: metrics that `acc` may be, folded, with the kind of accuracy that they are; "" is the one that fits
_ACCURACIES = {
    "accuracy": "",
    "acc": "",
    "binaryaccuracy": "binary",
    "categoricalaccuracy": "categorical",
    "sparsecategoricalaccuracy": "sparse_categorical",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """Arguments of a model's `compile`, as this package understands them."""

    #: optimizer with its arguments, such as "SGD(learning_rate=0.5)"; empty if there is none
    optimizer: str = ""
    #: training options that make its steps, for `TrainingOptions.with_steps`; empty if none do
    steps: Mapping[str, Any] = field(default_factory=dict)
    #: arguments of the optimizer that these leave out, each with what comes closest
    unused_steps: tuple[str, ...] = ()
    loss: LossRequest = None
    loss_weights: WeightRequest = None
    metrics: tuple[str, ...] = ()
    #: other arguments that have no effect here, each with what comes closest
    unused: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a user has chosen in other ways than by `compile`."""

    #: options with the values of a point
    training: TrainingOptions
    #: parameters of the search
    searched: Collection[str] = ()
    #: functions of the model module
    functions: Collection[str] = ()
    #: True if trials have models of different parameters, and so may have different arguments of `compile`
    varies: bool = False

    def option(self, name: str) -> str:
        """Return an option with its value in words, or the parameter that sets it; empty if it is not chosen."""
        if TRAIN_PREFIX + name in self.searched:
            return f"`{TRAIN_PREFIX}{name}`"
        chosen = name in self.training.given
        return f"`{spelled(name, getattr(self.training, name))}`" if chosen else ""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Which arguments of `compile` hold: sentences for the user, each empty if there is nothing to say."""

    #: belongs to the first line of a run
    replaced: str
    taken: str
    unused: str


def outcome_of(compiled: Compiled, choices: Choices, terms: Sequence[LossTerm]) -> Outcome:
    """Return which arguments of `compile` hold for a model with the losses `terms`."""
    replaced: list[str] = []
    taken: list[str] = []
    unused: list[str] = []
    training = choices.training
    if compiled.optimizer:
        maker = training.steps_by(own=False)
        of_worker = training.rule.steps_at_workers and training.worker_optimizer
        if other := choices.option("worker_optimizer" if of_worker else "optimizer"):
            replaced.append(f"{other} for {compiled.optimizer}")
        elif not maker:
            unused.append(f"{compiled.optimizer} (the steps are those of {training.rule.name})")
        elif not compiled.steps:
            unused.append(
                f"{compiled.optimizer} ({maker} trains in its place; `{spelled('optimizer')}`: {', '.join(OPTIMIZERS)})"
            )
        else:
            taken.append(_steps_in_words(training))
            unused += compiled.unused_steps
            if rate := choices.option("learning_rate"):
                replaced.append(f"{rate} for the learning rate of {compiled.optimizer}")
    if compiled.loss is not None:
        own = "`get_loss`" if "get_loss" in choices.functions else ""
        if other := choices.option("loss") or own:
            replaced.append(f"{other} for the loss {request_in_words(compiled.loss)}")
        else:
            taken.append(f"loss {losses_in_words(terms)}")
    if compiled.loss_weights is not None:
        if "get_loss_weights" in choices.functions:
            replaced.append("`get_loss_weights` for its loss weights")
        else:
            taken.append("loss weights")
    kinds = {term.accuracy for term in terms if term.accuracy}
    counted = [name for name in compiled.metrics if _is_counted(name, kinds)]
    taken += ["accuracy"] * bool(counted)
    if others := [name for name in compiled.metrics if name not in counted]:
        unused.append(f"metrics {', '.join(dict.fromkeys(others))} ({by_figure()})")
    unused += compiled.unused
    return Outcome(
        f"In place of what `compile` said: {'; '.join(replaced)}." if replaced else "",
        f"Taken from `compile`{_OF_EACH * choices.varies}: {', '.join(taken)}." if taken else "",
        f"Not taken from `compile`: {'; '.join(unused)}." if unused else "",
    )


def by_figure() -> str:
    """Return what computes metrics that a training does not."""
    return f"in a search, `{spelled('figure_of_merit')}` names a function that computes one"


def _is_counted(metric: str, kinds: Collection[str]) -> bool:
    """Return True if `acc` of losses with accuracies of these kinds is the metric."""
    kind = _ACCURACIES.get(fold(metric))
    return kind in kinds or (kind == "" and bool(kinds))


def _steps_in_words(training: TrainingOptions) -> str:
    """Return optimizer, learning rate and parameters."""
    values = {"learning_rate": training.learning_rate, **training.optimizer_params}
    given = ", ".join(f"{name}={value!r}" for name, value in values.items() if value is not None)
    return f"{training.optimizer} ({given})" if given else training.optimizer
