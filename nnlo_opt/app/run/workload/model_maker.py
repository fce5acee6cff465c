"""Makes the models of a run in the framework of their module."""

import gc
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Protocol

from nnlo_opt.app.run.options.values import Options
from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.base.trees import Arrays, leaves
from nnlo_opt.core.data.source import DataInfo
from nnlo_opt.core.models.adapter import EpochCallbacks, FrameworkAdapter
from nnlo_opt.core.training.options import TrainingOptions
from nnlo_opt.engine.models.builders import TrialDefinition, model_file, open_model
from nnlo_opt.engine.models.compiled import Compiled
from nnlo_opt.engine.models.composite import CompositeAdapter, CompositeModel
from nnlo_opt.engine.models.early import read_early
from nnlo_opt.engine.models.framework import Framework, framework_for, framework_of
from nnlo_opt.engine.models.functions import refuse_functions_of_torch
from nnlo_opt.engine.models.losses import Labels, LossTerm, make_terms, split_losses
from nnlo_opt.engine.models.metrics import NO_METRICS, Asked
from nnlo_opt.engine.models.own_optimizer import Instead, Own, OwnOptimizer
from nnlo_opt.engine.models.user_figure import UserFigure, load_figure

logger = logging.getLogger(__name__)


class KnownSamples(Protocol):
    """Samples that a model is made for."""

    @property
    def info(self) -> DataInfo:
        """Description of the samples."""

    @property
    def some_labels(self) -> Arrays:
        """Some labels, by which a loss is inferred."""


class ModelMaker:
    """Makes models, one after another.

    Args:
        given: definition of the model; None: `--model` names it.
        find_framework: returns the framework to begin with; None: the one that the text of the module imports.
    """

    def __init__(
        self,
        options: Options,
        context: ProcessContext,
        given: TrialDefinition | None = None,
        find_framework: Callable[[], Framework] | None = None,
    ) -> None:
        self._options = options
        self._context = context
        self._given = given
        self._find_framework = find_framework or self._imported_framework
        #: None until it is asked for
        self._definition = given
        self._framework: Framework | None = None
        #: False: nothing that a model says by `compile` holds, nor is refused
        self.follows_compile = options.follows_compile
        #: False: no optimizer of a framework takes the steps
        self.follows_optimizer = options.follows_optimizer
        #: False: `get_callbacks` is not called
        self.calls_back = True
        #: False: models are measured by losses and accuracies alone
        self.follows_metrics = options.follows_metrics
        #: True if `get_loss` of the last model returned an object, whose loss of each sample is used
        self.reads_loss = False
        #: training options that the last model brought, for `TrainingOptions.with_steps`
        self.steps: Mapping[str, Any] = {}
        #: optimizer of the last model, if its framework takes the steps
        self._own: Own | None = None
        #: parameters of the last model, and `get_optimizer` for it, if its module has that
        self._parameters: Mapping[str, Any] = {}
        self._make_optimizer: Callable[[], Any] | None = None
        #: names of the last model's metrics besides losses and accuracies
        self.measured: tuple[str, ...] = ()
        #: names of the metrics whose states add up over samples
        self.merging: Collection[str] = ()
        #: the last model; None before it is built, and after its release
        self._adapter: FrameworkAdapter | None = None
        #: True once the imported objects are hidden from the garbage collector
        self._froze = False

    @property
    def definition(self) -> TrialDefinition:
        """Definition of the model."""
        if self._definition is None:
            asked = self._options
            self._definition = (
                open_model(asked.model, asked.model_sha256, fresh=asked.fresh_weights)
                if asked.command is None
                else asked.command.definition()
            )
        return self._definition

    def read_early(self) -> bool:
        """Read what is known of the model without its framework; return True if that is anything."""
        asked = self._options
        known = self._given if asked.command is None else self.definition
        early = known or read_early(asked.model, asked.model_sha256, fresh=asked.fresh_weights)
        self._definition = early
        return early is not None

    def forget_early(self, *, wholly: bool) -> None:
        """Read the definition anew when it is asked for; not `wholly`: unless it is complete."""
        if wholly or self._definition is None or not self._definition.is_whole:
            self._definition = self._given

    @cached_property
    def figure(self) -> UserFigure | None:
        """Figure of merit that `--figure-of-merit` names; None without one."""
        spec, definition = self._options.comparison.function, self.definition
        if spec and ".py:" in spec:
            spec = str(self._options.run.start / spec)
        return None if spec is None else load_figure(spec, definition.functions, definition.source)

    # ------------------------------------------------------------ the framework

    def prepare(self) -> None:
        """Import the framework, unless the model is an objective, which needs none."""
        given = self._given
        is_objective = self._options.names_objective if given is None else given.kind == "objective"
        if not is_objective:
            # Before the user's module, which may import it too and does not know about threads and noise.
            self._import(self.framework)

    @property
    def framework(self) -> Framework:
        """Framework of the model; before one is built, the one that is expected."""
        if self._framework is None:
            self._framework = self._find_framework()
        return self._framework

    def _imported_framework(self) -> Framework:
        source = model_file(self._options.model) if self._given is None else self._given.source
        return framework_for(source, self._options.backend)

    def _import(self, framework: Framework) -> None:
        framework.import_framework(
            self._context.share.n_threads,
            quiet=self._options.log_level not in ("trace", "debug"),
            backend=self._options.keras_backend,
        )

    # ------------------------------------------------------------ models

    def build(
        self, parameters: dict[str, Any], options: TrainingOptions, seed: int, samples: KnownSamples
    ) -> FrameworkAdapter:
        """Return the model of these parameters, with weights that depend on the seed alone.

        Raises:
            TrialError: it cannot be built, or does not fit the samples.
        """
        model = self.new_model(parameters, seed)
        try:
            compiled = self.compiled(model, parameters)
            self.steps = compiled.brings(options)
            if isinstance(model, CompositeModel):
                return self.composite(model, options, seed, samples)[0]
            terms, remarks = self.checked_loss(options, model, compiled, samples)
            asked = self.metrics(compiled, terms)
        except ConfigurationError as error:
            # The middle of the search space was sound: it is this point that is not.
            raise TrialError(str(error)) from error
        if self._given is not None:  # a command prints them
            for remark in (*remarks, *self.remarks_on(options, model, compiled, terms, asked)):
                logger.info("%s", remark)
        return self.adapter(model, terms, asked, self.merging)

    def adapter(
        self, model: Any, terms: Sequence[LossTerm], asked: Asked, merging: Collection[str] | None
    ) -> FrameworkAdapter:
        """Return the adapter of a model; `merging`: metrics whose states add up, None for all."""
        # A framework of another package need not know metrics.
        measures = {"metrics": asked.metrics, "merging": merging} if asked.metrics else {}
        make: Callable[..., FrameworkAdapter] = self.framework.adapter
        self._adapter = adapter = make(model, terms, jit_compile=self.definition.jit_compile, **measures)
        return adapter

    def new_model(self, parameters: dict[str, Any], seed: int) -> Any:
        """Return what `get_model` returns; TrialError if it fails."""
        self.framework.set_seed(seed)
        model = self.definition.build(parameters, self._framework)
        owner = framework_of(model, self._framework, self.definition.own_framework)
        if owner is not None and owner is not self._framework:
            if self._options.backend is not None:
                raise ConfigurationError(
                    f"`get_model` must return {self.framework.NOUN} with "
                    f"`{spelled('backend', self._options.backend)}`. Received: {owner.NOUN}; leave "
                    f"`{spelled('backend')}` out."
                )
            # The text of the module did not tell.
            self._import(owner)
            self._framework = owner
            return self.new_model(parameters, seed)
        return model

    def compiled(self, model: Any, parameters: Mapping[str, Any]) -> Compiled:
        """Return what a model says of its training; ConfigurationError if it would train in a way that is not here.

        `parameters`: arguments of `get_model`.
        """
        # A framework of another package need not know.
        look: Callable[[Any], Compiled] | None = getattr(self.framework, "compiled_of", None)
        self._parameters, self._make_optimizer = parameters, None
        if not self.follows_compile or look is None or isinstance(model, CompositeModel):
            return Compiled()
        found = look(model)
        found = self._with_optimizer(found, model, parameters) if self.follows_optimizer else replace(found, own=None)
        self._own = found.own
        return found

    def _with_optimizer(self, found: Compiled, model: Any, parameters: Mapping[str, Any]) -> Compiled:
        """Return what a model says of its training, with the optimizer of `get_optimizer`."""
        # Only torch has it.
        own_of: Callable[..., Own] | None = getattr(self.framework, "own_of", None)
        definition = self.definition
        if own_of is None:
            refuse_functions_of_torch(definition)
            return found
        if "get_optimizer" not in definition.functions:
            return found

        def make() -> Any:
            return definition.made_for("get_optimizer", model, parameters)

        own = own_of(model, make, self._make_scheduler(parameters), str(definition.source))
        self._make_optimizer = make
        return replace(found, said_by="`get_optimizer`", optimizer=own.words, own=own)

    def _make_scheduler(self, parameters: Mapping[str, Any]) -> Callable[[Any], Any] | None:
        """Return `get_scheduler` with these parameters; None if there is none, or it is not called."""
        definition = self.definition
        if not self.calls_back or "get_scheduler" not in definition.functions:
            return None
        return lambda optimizer: definition.made_for("get_scheduler", optimizer, parameters)

    def with_own(self, options: TrainingOptions, n_workers: int) -> TrainingOptions:
        """Return options with the optimizer that takes the steps of the last model, if its framework runs it.

        `n_workers`: workers of a master.

        Raises:
            ConfigurationError: it cannot take the steps.
        """
        own, rate = self._own, options.rate_of_own
        if not options.own_optimizer or own is None:
            return options
        options.check_own(n_workers, own.schedule_beside(rate))
        adapter: Any = self._adapter
        instead = Instead(
            learning_rate=rate,
            weight_decay=options.weight_decay,
            no_decay=options.no_decay,
            clips=options.clipping(()) is not None,
        )
        stepping = adapter.stepping(own, instead)
        # Where workers have weights of their own, the master keeps the average.
        ema = options.ema if options.rule.averages_every_batch else None
        return replace(options, own=OwnOptimizer(adapter.n_weights, stepping, own.words, ema))

    def checked_loss(
        self, options: TrainingOptions, model: Any, compiled: Compiled, samples: KnownSamples
    ) -> tuple[tuple[LossTerm, ...], tuple[str, ...]]:
        """Return the losses, and sentences for the user; ConfigurationError if model, data and losses disagree."""
        info = samples.info
        # A framework of another package need not know.
        declared: Callable[[Any], list[str]] = getattr(self.framework, "input_names", lambda _: [])
        _check_names("features", info.feature_names, declared(model))
        name_inputs: Callable[[Any, Sequence[str]], None] = getattr(self.framework, "name_inputs", lambda *_: None)
        name_inputs(model, info.feature_names)
        outputs = self.framework.describe_outputs(model, info.feature_shape)
        _check_names("labels", info.label_names, [output.name for output in outputs])
        own_weights = self.definition.loss_weights()
        own_loss = self.definition.loss()
        # A framework of another package need not know.
        read: Callable[[Any], Any] = getattr(self.framework, "with_objects_read", lambda request: request)
        if self.follows_metrics and own_loss is not None:
            given, own_loss = own_loss, read(own_loss)
            self.reads_loss = own_loss != given
        request = split_losses(options.loss) if options.loss else own_loss or compiled.loss
        weights = compiled.loss_weights if own_weights is None else own_weights
        shapes, dtypes = [*leaves(info.label_shape)], [*leaves(info.label_dtype)]
        values = [None] * len(shapes) if request else [*leaves(samples.some_labels)]
        labels = [Labels(*parts) for parts in zip(shapes, dtypes, values, strict=True)]
        return make_terms(request, weights, outputs, labels, self.framework.RULES)

    def remarks_on(
        self, options: TrainingOptions, model: Any, compiled: Compiled, terms: Sequence[LossTerm], asked: Asked
    ) -> list[str]:
        """Return sentences on what may surprise in a model; they take as long as describing the whole model."""
        # A framework of another package need not know.
        remarks_on: Callable[..., list[str]] = getattr(self.framework, "remarks_on", lambda *_, is_own: [])
        is_own = bool(options.with_steps(compiled.brings(options)).own_optimizer)
        return remarks_on(model, terms, asked, is_own=is_own)

    def callbacks(
        self, figures: Sequence[str], options: TrainingOptions, *, validates: bool, is_scheduled: bool = False
    ) -> EpochCallbacks | None:
        """Return new callbacks of the model module for a training; None if it has none.

        Args:
            figures: names of the last model's losses and accuracies.
            options: options of the training.
            validates: True if there are validation data.
            is_scheduled: True if another point may have a schedule of the learning rate.

        Raises:
            ConfigurationError: one of them would not act on the training as the user expects.
        """
        definition = self.definition
        own = self._own if options.own_optimizer else None
        is_scheduled = is_scheduled or options.schedule.changes
        in_training = [*figures, *(name for name in self.measured if name in self.merging)]
        known = [*in_training, *(f"val_{name}" for name in (*figures, *self.measured) if validates)]
        made = definition.callbacks() if self.calls_back else []
        scheduler: Callable[..., EpochCallbacks | None] | None = getattr(self.framework, "epoch_scheduler", None)
        schedule = self._make_scheduler(self._parameters)
        if schedule is not None and not made and scheduler is not None:
            if is_scheduled:
                raise ConfigurationError(
                    f"Either `{spelled('lr_schedule')}` with `{spelled('warmup_epochs')}`, or `get_scheduler` of "
                    f"{definition.source} sets the learning rate. Received: both. Leave one of them out."
                )
            make_optimizer = self._make_optimizer if own else None
            monitor = getattr(definition.functions["get_scheduler"], "monitor", None)
            return scheduler(make_optimizer, schedule, monitor, str(definition.source), known)
        if not made:
            return None
        make: Callable[..., EpochCallbacks] | None = getattr(self.framework, "epoch_callbacks", None)
        if make is None or definition.trains_itself:
            what = "a composite model" if definition.trains_itself else self.framework.NOUN
            others = ("early_stopping", "target_metric", "lr_schedule", "checkpoint_interval")
            raise ConfigurationError(
                f"`get_callbacks` is for a Keras model. Received: {what}, of {definition.source}. Remove it; "
                f"{', '.join(f'`{spelled(name)}`' for name in others)} do what most callbacks do."
            )
        is_scheduled = is_scheduled or bool(own and own.schedule_beside(options.rate_of_own))
        return make(made, str(definition.source), known, options.epochs, is_scheduled=is_scheduled)

    def metrics(self, compiled: Compiled, terms: Sequence[LossTerm]) -> Asked:
        """Return the metrics of `get_metrics` or, without it, of `compile`; ConfigurationError if they do not fit."""
        self.measured = ()
        if not self.follows_metrics:
            return NO_METRICS
        own = self.definition.metrics()
        requests = (compiled.metrics, compiled.weighted_metrics) if own is None else (own, None)
        if not any(requests):
            return NO_METRICS
        look: Callable[..., Asked] | None = getattr(self.framework, "metrics_of", None)
        if look is None:
            raise ConfigurationError(
                f"`get_metrics` is for models of Keras and torch. Received: {self.framework.NOUN}. Leave it out."
            )
        asked = look(requests[0], terms, requests[1])
        self.measured = asked.names
        return asked

    def composite(
        self, model: CompositeModel, options: TrainingOptions, seed: int, samples: KnownSamples
    ) -> tuple[CompositeAdapter, tuple[str, ...]]:
        """Return the adapter of a composite, and sentences for the user about options that have no effect."""
        definition, data = self.definition, self._options.data
        if not definition.trains_itself:
            raise ConfigurationError(
                f"A composite model must be declared. Received: one of {definition.source}, whose `get_model` is not. "
                "Write `get_model.trains_itself = True` below `get_model`."
            )
        if data.class_weights is not None or data.sample_weights_name is not None:
            raise ConfigurationError(
                "A composite model does not accept weights of classes or samples. Received: some; leave "
                f"`{spelled('class_weights')}` and `{spelled('sample_weights_name')}` out."
            )
        if self.follows_metrics and "get_metrics" in definition.functions:
            raise ConfigurationError(
                "A composite model returns its own figures. Received: one with `get_metrics`. Leave the function out."
            )
        policy = getattr(definition.functions["get_model"], "dtype_policy", None)
        with self.framework.building(definition.custom_objects, policy):
            self._adapter = adapter = CompositeAdapter(model, samples.info.feature_shape, options, seed)
        option = spelled("worker_optimizer" if options.worker_optimizer else "optimizer")
        asked = options.worker_optimizer or options.optimizer
        ignored = [(spelled("loss"), "losses")] if options.loss else []
        ignored += [(option, "optimizers")] if asked not in (TrainingOptions().optimizer, *adapter.optimizers) else []
        text = "`{}` has no effect: the models of a composite have their own {}."
        return adapter, tuple(text.format(*each) for each in ignored)

    def release(self) -> None:
        """Release the last model."""
        adapter, self._adapter, self._own, self._make_optimizer = self._adapter, None, None, None
        if adapter is not None:
            adapter.release()
        else:
            self.framework.forget_models()
        if not self._froze and self._given is None:
            # What is left is the framework: looking through its objects again would take 0.2 s of every trial.
            gc.freeze()
            self._froze = True


def _check_names(what: str, given: Sequence[str], declared: Sequence[str]) -> None:
    """Raise ConfigurationError if samples in a dictionary would reach other inputs or outputs than those they name."""
    if given and declared and [*given] != [*declared]:
        place = "inputs" if what == "features" else "outputs"
        raise ConfigurationError(
            f"A dictionary of {what} stands for the list in alphabetical order, and must name the {place} of the model "
            f"in this order. Received: {', '.join(given)} for the {place} {', '.join(declared)}. Return a list in the "
            f"order of the {place}."
        )
