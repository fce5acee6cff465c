"""Training options: a frozen dataclass that validates itself.

A search sets training options by `TrainingOptions.with_point`: a parameter named `train.<option>` replaces that option
for one trial.
"""

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from nnlo_opt.core.base.errors import ConfigurationError, check_whole, did_you_mean, require_known
from nnlo_opt.core.base.spelling import either, spelled
from nnlo_opt.core.space.space import TRAIN_PREFIX
from nnlo_opt.core.space.values import is_number
from nnlo_opt.core.training.schedules import LearningRateSchedule
from nnlo_opt.core.training.stopping import EarlyStopping, TargetMetric
from nnlo_opt.core.update_rules.clipping import CLIPPINGS, Clipping
from nnlo_opt.core.update_rules.effect import have_same_steps
from nnlo_opt.core.update_rules.layers import Layer
from nnlo_opt.core.update_rules.optimizers import OPTIMIZERS, BaseOptimizer
from nnlo_opt.core.update_rules.registry import RULES, default_values
from nnlo_opt.core.update_rules.rule import UpdateRule
from nnlo_opt.core.update_rules.staleness import StalenessPolicy

#: update rules
MODES = tuple(RULES)
#: how updates of a worker reach the central weights
EXCHANGES = ("auto", "messages")
#: options of an optimizer besides its own parameters
BESIDE = ("weight_decay", "no_decay", *CLIPPINGS, "ema")
#: options that only the optimizers of `OPTIMIZERS` have
_OF_TWINS = ("optimizer_params", "momentum_correction")
#: fields that are no options
_NOT_SAID = ("rules", "given", "own_optimizer", "own")
#: integer options -> what they count
_COUNTS = {"batch": "samples", "epochs": "epochs", "sync_every": "batches", "checkpoint_interval": "epochs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """Options of one training; invalid or contradictory ones raise ConfigurationError."""

    #: samples per gradient of a worker
    batch: int = 100
    #: passes over all training samples, all workers together
    epochs: int = 1
    #: optimizer at the master
    optimizer: str = "adam"
    #: learning rate of the optimizer; None for its own default
    learning_rate: float | None = None
    optimizer_params: Mapping[str, Any] = field(default_factory=dict)
    #: decoupled weight decay; None for the optimizer's own (adamw has one)
    weight_decay: float | None = None
    #: regular expression for the names of arrays without decay
    no_decay: str | None = None
    #: limit of the norm of the gradient of each array, of the norm of all, or of each number: at most one of the three
    clip_norm: float | None = None
    global_clip_norm: float | None = None
    clip_value: float | None = None
    #: momentum of the average of the weights, which is evaluated and saved; None for no average
    ema: float | None = None
    #: epochs over which the learning rate rises to its value, or their share such as "10%", and its schedule
    #: afterwards; see `core.training.schedules`
    warmup_epochs: float | str = 0.0
    lr_schedule: str = "constant"
    #: update rule, one of `MODES`
    mode: str = "downpour"
    #: True if the master waits for all workers and averages their updates by samples
    synchronous: bool = False
    #: batches that a worker trains between two exchanges
    sync_every: int = 1
    #: auto: workers that all share memory with their master update its weights directly (in allreduce each rank updates
    #: a part of them); messages: everything is sent
    exchange: str = "auto"
    #: True if a worker computes its next batch while the master answers; None: True if workers do not wait for each
    #: other
    overlap: bool | None = None
    #: downpour: weight of an update by its staleness: none, scale or drop:N
    staleness: str = "none"
    #: downpour with sgd: reduce the optimizer's momentum by the implicit momentum of staleness
    momentum_correction: bool = False
    #: optimizer of a worker's local steps between exchanges; None for `optimizer` in easgd, and plain sgd otherwise
    worker_optimizer: str | None = None
    worker_optimizer_params: Mapping[str, Any] = field(default_factory=dict)
    #: name -> value of options of single update rules (`core.update_rules.rule.RuleOption`)
    of_rules: Mapping[str, Any] = field(default_factory=dict)
    #: Keras name of the loss; None for the loss of the model module or, if it has none, an inferred one
    loss: str | None = None
    early_stopping: str | None = None
    target_metric: str | None = None
    #: epochs between checkpoints
    checkpoint_interval: int = 1
    shuffle: bool = True
    #: mode -> update rule; the only table that contains custom rules
    rules: Mapping[str, UpdateRule] = field(default_factory=lambda: RULES, compare=False, repr=False)
    #: names of the options that were given or searched, which a model does not change
    given: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    #: optimizer that the model brings and that its framework runs, in words; empty for `optimizer`
    own_optimizer: str = field(default="", compare=False, repr=False)
    #: that optimizer, on a rank with the model
    own: BaseOptimizer | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "TrainingOptions":
        """Return options from name -> value, options of single update rules included."""
        names = default_values()
        others = {name: value for name, value in given.items() if name not in names}
        return cls(**others, of_rules={name: value for name, value in given.items() if name in names})

    def __post_init__(self) -> None:
        object.__setattr__(self, "of_rules", {**default_values(), **self.of_rules})
        for name, unit in _COUNTS.items():
            check_whole(spelled(name), getattr(self, name), unit=unit)
        for name, choices in (("optimizer", OPTIMIZERS), ("mode", tuple(self.rules)), ("exchange", EXCHANGES)):
            require_known(f"`{spelled(name)}`", getattr(self, name), choices)
        if self.learning_rate is not None and not (is_number(self.learning_rate) and self.learning_rate > 0):
            raise ConfigurationError(
                f"`{spelled('learning_rate')}` must be a finite number above 0. Received: {self.learning_rate!r}."
            )
        for name in ("synchronous", "shuffle", "overlap", "momentum_correction"):
            value = getattr(self, name)
            if not isinstance(value, bool) and not (name == "overlap" and value is None):
                raise ConfigurationError(f"`{spelled(name)}` must be True or False. Received: {value!r}.")
        self._check_beside()
        self._check_rule()
        self.schedule.check(self.epochs)
        _ = self.stopping, self.target, self.staleness_policy  # raises if one is invalid

    @property
    def schedule(self) -> LearningRateSchedule:
        """Schedule of the learning rate."""
        return LearningRateSchedule.parse(self.lr_schedule, self.warmup_epochs)

    @property
    def stopping(self) -> EarlyStopping | None:
        """Parsed `early_stopping`; None if not set."""
        return EarlyStopping.parse(self.early_stopping) if self.early_stopping else None

    @property
    def target(self) -> TargetMetric | None:
        """Parsed `target_metric`; None if not set."""
        return TargetMetric.parse(self.target_metric) if self.target_metric else None

    @property
    def staleness_policy(self) -> StalenessPolicy:
        """Parsed `staleness`."""
        return StalenessPolicy.parse(self.staleness)

    @property
    def rule(self) -> UpdateRule:
        """Update rule that `mode` names."""
        return self.rules[self.mode]

    @property
    def waits(self) -> bool:
        """True if the workers of an assignment wait for each other."""
        return self.synchronous or self.rule.averages_every_batch

    def steps_by(self, *, own: bool) -> str:
        """Return the optimizer used for the steps, "" if the rule steps by itself; `own`: the model trains itself."""
        if self.own_optimizer:
            return self.own_optimizer
        if (own or self.rule.steps_at_workers) and self.worker_optimizer:
            name = "worker_optimizer"
        else:
            name = "optimizer"
        if own:
            return str(getattr(self, name))
        at_one_rate = replace(self, learning_rate=self.learning_rate or 0.01, momentum_correction=False)
        return str(getattr(self, name)) if at_one_rate.has_effect(name) else ""

    def has_effect(self, name: str, mode: str = "") -> bool:
        """Return True if the option `name` changes the steps of the rule, or of the rule `mode`.

        `name`: optimizer, worker_optimizer, learning_rate or weight_decay.
        """
        rule = self.rules[mode or self.mode]
        plain: dict[str, Any] = {"mode": mode or self.mode, "momentum_correction": False}
        plain |= {"own_optimizer": "", "own": None}
        if name != "learning_rate":
            plain |= {"optimizer_params": {}, "worker_optimizer_params": {}}
        values: tuple[Any, Any] = (0.01, 0.02) if name in ("learning_rate", "weight_decay") else ("sgd", "adam")
        try:
            same = have_same_steps(rule, *(replace(self, **plain | {name: value}) for value in values))
        except ConfigurationError:  # the rule refuses one of them
            same = None
        return rule.takes_optimizer if same is None else not same

    @property
    def shares_weights(self) -> bool:
        """True if workers with shared memory update the central weights directly; overlapping needs messages."""
        return self.exchange == "auto" and not self.waits and not self.overlap

    @property
    def shares_steps(self) -> bool:
        """True if each rank with shared memory applies only a part of every step."""
        return self.exchange == "auto" and self.rule.parts_steps and not self.own_optimizer

    @property
    def overlaps(self) -> bool:
        """True if a worker computes its next batch while the master answers."""
        return not self.waits if self.overlap is None else self.overlap

    @property
    def clips_mean(self) -> bool:
        """True if the master clips the mean of the workers' gradients; else each worker clips its own."""
        # Between two exchanges a worker follows its own gradients.
        is_mean = self.synchronous and self.sync_every == 1 and self.rule.averages_gradients
        return is_mean and not self.own_optimizer

    def clipping(self, layers: Sequence[Layer]) -> Clipping | None:
        """Return what clips a gradient of a model of these layers; None if nothing does."""
        for name in CLIPPINGS:
            if (limit := getattr(self, name)) is not None:
                return Clipping(name, limit, layers)
        return None

    def _check_beside(self) -> None:
        """Raise ConfigurationError for invalid weight decay, clipping or average."""
        rules = {
            "weight_decay": "a finite number, at least 0",
            **dict.fromkeys(CLIPPINGS, "a finite number above 0"),
            "ema": "a number of at least 0 and below 1, such as 0.99",
        }
        for name, rule in rules.items():
            if (value := getattr(self, name)) is not None:
                is_sound = is_number(value) and (value > 0 or (value == 0 and name not in CLIPPINGS))
                if not is_sound or (name == "ema" and value >= 1):
                    raise ConfigurationError(f"`{spelled(name)}` must be {rule}. Received: {value!r}.")
        if self.no_decay is not None:
            try:
                re.compile(self.no_decay)
            except (re.error, TypeError) as error:
                raise ConfigurationError(
                    f"`{spelled('no_decay')}` must be a regular expression, such as 'bias|norm'. Received: "
                    f"{self.no_decay!r} ({error})."
                ) from error
        if len(given := [name for name in CLIPPINGS if getattr(self, name) is not None]) > 1:
            said = " and ".join(f"`{spelled(name, getattr(self, name))}`" for name in given)
            raise ConfigurationError(f"A gradient is clipped in one way only. Received: {said}; drop all but one.")

    def _check_rule(self) -> None:
        """Raise ConfigurationError for options that the update rule does not support."""
        rule, mode = self.rule, f"`{spelled('mode', self.mode)}`"
        together = f"`{spelled('synchronous', True)}`" if self.synchronous else mode
        weighs = self.staleness != "none" and (self.waits or not rule.weighs_staleness)
        drop_it = f"is for asynchronous `{spelled('mode', 'downpour')}`: drop it, or what it contradicts"
        counts = self.sync_every > 1 and not rule.makes_local_steps
        for name, given, demand in (
            ("synchronous", self.synchronous and not rule.may_be_synchronous, f"must be left out with {mode}"),
            ("overlap", self.overlap and self.waits, f"must be left out with {together}"),
            ("staleness", weighs, drop_it),
            ("sync_every", counts, f"must be 1 with {mode}, whose workers take no steps by themselves"),
            ("ema", self.ema is not None and not rule.keeps_average, f"must be left out with {mode}"),
        ):
            if given:
                value = getattr(self, name)
                raise ConfigurationError(f"`{spelled(name)}` {demand}. Received: {value!r} with {mode}.")
        self._check_momentum()
        rule.check(self)

    def _check_momentum(self) -> None:
        """Raise ConfigurationError for `momentum_correction` if there is no momentum to correct."""
        if not self.momentum_correction:
            return
        momentum, nesterov = (self.optimizer_params.get(name, 0.0) for name in ("momentum", "nesterov"))
        is_unfit, given = nesterov or not (is_number(momentum) and momentum > 0), dict(self.optimizer_params)
        for is_wrong, received, remedy in (
            (
                not self.rule.corrects_momentum,
                f"`{spelled('mode', self.mode)}`",
                f"use `{spelled('mode', 'downpour')}`",
            ),
            (self.synchronous, f"`{spelled('synchronous', True)}`", "let each worker train at its own pace"),
            (self.staleness != "none", f"`{spelled('staleness', self.staleness)}`", "choose one of the two"),
            (
                self.optimizer != "sgd",
                f"`{spelled('optimizer', self.optimizer)}`",
                f"use `{spelled('optimizer', 'sgd')}`",
            ),
            (is_unfit, f"`{spelled('optimizer_params', given)}`", "give them a momentum above 0, without nesterov"),
        ):
            if is_wrong:
                raise _not_corrected(received, remedy)

    def with_point(self, point: Mapping[str, Any]) -> "TrainingOptions":
        """Return these options with the `train.*` parameters of `point`; ConfigurationError for an unknown one."""
        changes: dict[str, Any] = {}
        given = set(self.given)
        for name, value in point.items():
            if not name.startswith(TRAIN_PREFIX):
                continue
            option, _, parameter = searchable(name).partition(".")
            given.add(option)
            if option in self.of_rules:
                option, parameter = "of_rules", option
            if parameter:
                changes[option] = {**changes.get(option, getattr(self, option)), parameter: value}
            else:
                changes[option] = value
        return replace(self, **changes, given=frozenset(given))

    def with_steps(self, steps: Mapping[str, Any]) -> "TrainingOptions":
        """Return the options with the optimizer of a model, as far as they do not choose another.

        Args:
            steps: optimizer, learning_rate and optimizer_params of the model, and those of `BESIDE` that it has; empty
                if it brings none. Those of an optimizer that the framework runs are its words as `own`, and its `ema`.
        """
        if not steps or "optimizer" in self.given:
            return self
        of_worker = self.rule.steps_at_workers and self.worker_optimizer
        if "own" in steps:
            ema = self.ema if "ema" in self.given or not self.rule.keeps_average else steps.get("ema")
            return self if of_worker else replace(self, own_optimizer=steps["own"], ema=ema)
        rate = self.learning_rate if "learning_rate" in self.given else steps["learning_rate"]
        parameters = {**steps["optimizer_params"], **self.optimizer_params}
        beside: dict[str, Any] = {}
        if not of_worker:
            # A rule that steps by itself takes the average alone.
            others = BESIDE if self.steps_by(own=False) else ("ema",)
            free = (name for name in others if self.given.isdisjoint(alternatives(name)))
            beside = {name: steps.get(name) for name in free if name != "ema" or self.rule.keeps_average}
        beside["own_optimizer"] = ""
        return replace(self, optimizer=steps["optimizer"], learning_rate=rate, optimizer_params=parameters, **beside)

    @property
    def rate_of_own(self) -> float | None:
        """Learning rate in place of that of an optimizer that the framework runs; None to keep it."""
        rates = [self.of_rules[option.name] for option in self.rule.options if option.is_rate]
        return next((rate for rate in rates if rate is not None), self.learning_rate)

    def check_own(self, n_workers: int, schedule: str = "") -> None:
        """Raise ConfigurationError if an optimizer that the framework runs cannot take the steps.

        Args:
            n_workers: workers of a master.
            schedule: schedule inside of the optimizer, in words; empty if it has none.
        """
        if not self.own_optimizer:
            return
        if not self.rule.takes_own(self, n_workers):
            raise ConfigurationError(
                f"{self.own_optimizer} of the model needs workers that take whole steps: "
                f"`{spelled('mode', 'allreduce')}`, `{spelled('mode', 'easgd')}`, or `{spelled('mode', 'downpour')}` "
                f"with one worker. Received: `{spelled('mode', self.mode)}` and {n_workers} "
                f"worker{'s' * (n_workers > 1)}; choose one of these modes, or one of {', '.join(OPTIMIZERS)} by "
                f"`{spelled('optimizer')}`."
            )
        others = dict.fromkeys(_OF_TWINS, f"is for {', '.join(OPTIMIZERS)}")
        if schedule:
            others |= dict.fromkeys(("lr_schedule", "warmup_epochs"), f"and {schedule} exclude each other")
        defaults = TrainingOptions()
        for name, rule in others.items():
            if (value := getattr(self, name)) != getattr(defaults, name):
                raise ConfigurationError(
                    f"`{spelled(name)}` {rule}. Received: {value!r} beside {self.own_optimizer} of the model; leave it "
                    f"out, or choose an optimizer by `{spelled('optimizer')}`."
                )

    def for_updates(self) -> "TrainingOptions":
        """Return the options of the update rule for a model that trains itself: weight differences are added.

        Raises:
            ConfigurationError: an option is set for steps that are inside the model.
        """
        if self.momentum_correction:
            raise _not_corrected("a model that trains itself", "train it without")
        for name in ("weight_decay", *CLIPPINGS):
            if (value := getattr(self, name)) is not None:
                raise ConfigurationError(
                    f"`{spelled(name)}` is for models that return gradients. Received: {value!r} with a model that "
                    "trains itself; leave it out."
                )
        plain: dict[str, Any] = {"optimizer_params": {}, "worker_optimizer": None, "worker_optimizer_params": {}}
        own = {option.name: 1.0 for option in self.rule.options if option.is_rate}
        return replace(self, optimizer="sgd", learning_rate=1.0, of_rules={**self.of_rules, **own}, **plain)

    def to_json(self) -> dict[str, Any]:
        """Return name -> plain data, options of single update rules included."""
        plain: dict[str, Any] = {}
        for name in (option.name for option in fields(self) if option.name not in _NOT_SAID):
            value = copy.deepcopy(getattr(self, name))
            plain |= value if name == "of_rules" else {name: value}
        return plain


def alternatives(name: str) -> tuple[str, ...]:
    """Return the options that exclude this one of `BESIDE`, with itself: of the ways to clip, one holds."""
    return CLIPPINGS if name in CLIPPINGS else (name,)


def _not_corrected(received: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(
        f"`{spelled('momentum_correction', True)}` is for asynchronous `{spelled('mode', 'downpour')}` with sgd, "
        f"momentum and equally weighted updates. Received: {received}; {remedy}, or leave the correction out."
    )


#: options that are dictionaries: `train.<option>.<name>` refers to one of their values
_DICTIONARIES = ("optimizer_params", "worker_optimizer_params")
#: options that `train.<option>` may name
SEARCHABLE = tuple(name for name in TrainingOptions().to_json() if name not in (*_DICTIONARIES, "checkpoint_interval"))


def searchable(name: str) -> str:
    """Return the option of a parameter `train.<option>`; ConfigurationError for an unknown one.

    For a value of a dictionary it is `optimizer_params.<name>` or `worker_optimizer_params.<name>`.
    """
    option = name.removeprefix(TRAIN_PREFIX).replace("-", "_")
    dictionary, _, parameter = option.partition(".")
    if dictionary in _DICTIONARIES and parameter:
        return option
    if option not in SEARCHABLE:
        # Compare without the prefix, which makes all names similar.
        meant = did_you_mean(option, SEARCHABLE).replace("`", f"`{TRAIN_PREFIX}", 1)
        hint = meant or f" There are {', '.join(TRAIN_PREFIX + each for each in SEARCHABLE)}, "
        hint = hint if meant else f"{hint}{' and '.join(f'{TRAIN_PREFIX}{each}.<name>' for each in _DICTIONARIES)}."
        raise ConfigurationError(
            f"A parameter that begins with `train.` must name a training {either('option', 'argument')}. Received: "
            f"{name!r}.{hint}"
        )
    return option


def model_parameters(point: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a point that are passed to `get_model`: those without the prefix `train.`."""
    return {name: value for name, value in point.items() if not name.startswith(TRAIN_PREFIX)}
