"""Settings that a compiled model brings to its training, and which of them are used beside the options of a run.

The adapter of a framework reads them from the model (`engine.models.keras.compiled`). An option that is given or
searched takes precedence over them, and they take precedence over the default of an option. The user is told which
settings are ignored.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.space.space import TRAIN_PREFIX
from nnlo_opt.core.training.options import BESIDE, TrainingOptions, alternatives
from nnlo_opt.core.update_rules.clipping import CLIPPINGS
from nnlo_opt.core.update_rules.optimizers import OPTIMIZERS
from nnlo_opt.engine.models.losses import LossRequest, LossTerm, WeightRequest, losses_in_words, request_in_words
from nnlo_opt.engine.models.metrics import NO_METRICS, Asked
from nnlo_opt.engine.models.own_optimizer import Own

#: options beside the steps of an optimizer, in words
_BESIDE = {
    "weight_decay": "weight decay",
    "no_decay": "exceptions from weight decay",
    **dict.fromkeys(CLIPPINGS, "clipping"),
    "ema": "average of the weights",
}
#: said in a search, whose trials may have other values
_OF_EACH = " of each trial, here at the middle of the search space"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """Arguments of a model's `compile`, as this package understands them."""

    #: what of the model's module says it
    said_by: str = "`compile`"
    #: optimizer with its arguments, such as "SGD(learning_rate=0.5)"; empty if there is none
    optimizer: str = ""
    #: training options that make its steps, for `TrainingOptions.with_steps`; empty if none do
    steps: Mapping[str, Any] = field(default_factory=dict)
    #: arguments of the optimizer that these leave out, each with what comes closest
    unused_steps: tuple[str, ...] = ()
    #: the optimizer itself, if its framework has to take its steps, and its arguments without effect then
    own: Own | None = None
    unused_own: tuple[str, ...] = ()
    loss: LossRequest = None
    loss_weights: WeightRequest = None
    #: as `compile` takes them, for `engine.models.metrics`
    metrics: Any = None
    weighted_metrics: Any = None
    #: other arguments that have no effect here, each with what comes closest
    unused: tuple[str, ...] = ()

    @property
    def ema(self) -> float | None:
        """Momentum of the average of the weights; None for no average."""
        ema: float | None = self.own.ema if self.own is not None else self.steps.get("ema")
        return ema

    def brings(self, training: TrainingOptions) -> Mapping[str, Any]:
        """Return the training options that the model brings, for `TrainingOptions.with_steps`."""
        own = self.own
        if own is None or (own.differs_in_rate_only and "learning_rate" in training.given):
            return self.steps
        return {"own": own.words} | ({} if own.ema is None else {"ema": own.ema})


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """What a user has chosen by options, parameters and functions of the module, not by `compile`."""

    #: options with the values of a point
    training: TrainingOptions
    #: parameters of the search
    searched: Collection[str] = ()
    #: functions of the model module
    functions: Collection[str] = ()
    #: True if trials have models of different parameters, and so may have different arguments of `compile`
    varies: bool = False
    #: why metrics are not computed; empty if they are
    unmeasured: str = ""

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


def outcome_of(compiled: Compiled, choices: Choices, terms: Sequence[LossTerm], asked: Asked = NO_METRICS) -> Outcome:
    """Return which arguments of `compile` hold for a model with the losses `terms`, measured by the metrics `asked`."""
    replaced: list[str] = []
    taken: list[str] = []
    unused: list[str] = []
    training = choices.training
    if compiled.optimizer:
        maker = training.steps_by(own=False)
        of_worker = training.rule.steps_at_workers and training.worker_optimizer
        if chosen := choices.option("worker_optimizer" if of_worker else "optimizer"):
            replaced.append(f"{chosen} for {compiled.optimizer}")
        elif training.own_optimizer:
            taken.append(training.own_optimizer)
            unused += compiled.unused_own
            if rate := choices.option("learning_rate"):
                replaced.append(f"{rate} for the learning rate of {compiled.optimizer}")
            if "weight_decay" in training.own_optimizer and (other := choices.option("weight_decay")):
                replaced.append(f"{other} for the weight decay of {compiled.optimizer}")
            clips = "clip" in training.own_optimizer
            if clips and (other := next(filter(None, map(choices.option, CLIPPINGS)), "")):
                replaced.append(f"{other} for the clipping of {compiled.optimizer}")
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
            for option, what in _BESIDE.items():
                is_said = option in {**compiled.steps, **compiled.steps["optimizer_params"]} and option != "ema"
                if is_said and (other := next(filter(None, map(choices.option, alternatives(option))), "")):
                    replaced.append(f"{other} for the {what} of {compiled.optimizer}")
        if compiled.ema is not None and not chosen:
            if other := choices.option("ema"):
                replaced.append(f"{other} for the {_BESIDE['ema']} of {compiled.optimizer}")
            elif not training.rule.keeps_average:
                unused.append(f"the {_BESIDE['ema']} of {compiled.optimizer} ({training.mode} keeps none)")
            elif not maker:
                taken.append(f"{_BESIDE['ema']} (ema={training.ema!r})")
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
    if compiled.metrics or compiled.weighted_metrics:
        if "get_metrics" in choices.functions:
            replaced.append("`get_metrics` for its metrics")
        else:
            taken += ["accuracy"] * bool(asked.counted)
            if choices.unmeasured:
                unused.append(f"{' '.join(['metrics', ', '.join(asked.names)]).rstrip()} ({choices.unmeasured})")
            elif asked.names:
                taken.append(f"metrics {', '.join(asked.names)}")
            unused += [f"metrics {', '.join(asked.unfit)} (no output has classes)"] * bool(asked.unfit)
    unused += compiled.unused
    return Outcome(
        f"In place of what {compiled.said_by} said: {'; '.join(replaced)}." if replaced else "",
        f"Taken from {compiled.said_by}{_OF_EACH * choices.varies}: {', '.join(taken)}." if taken else "",
        f"Not taken from {compiled.said_by}: {'; '.join(unused)}." if unused else "",
    )


def _steps_in_words(training: TrainingOptions) -> str:
    """Return optimizer, learning rate and parameters."""
    values = {"learning_rate": training.learning_rate, **training.optimizer_params}
    values |= {name: value for name in BESIDE if (value := getattr(training, name)) is not None}
    given = ", ".join(f"{name}={value!r}" for name, value in values.items() if value is not None)
    return f"{training.optimizer} ({given})" if given else training.optimizer
