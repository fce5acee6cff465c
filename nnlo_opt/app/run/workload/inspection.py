"""Inspection of model, search space, data before a run: it refuses what cannot be right."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from nnlo_opt.app.run.options.comparing import check_objectives
from nnlo_opt.app.run.options.space_checks import check_space, check_training
from nnlo_opt.app.run.options.values import DataOptions, Options
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.app.run.workload.model_maker import ModelMaker
from nnlo_opt.app.run.workload.run_data import RunData
from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.base.spelling import either, spelled
from nnlo_opt.core.base.trees import leaves
from nnlo_opt.core.data.ragged import padded
from nnlo_opt.core.models.adapter import FrameworkAdapter, figures_over
from nnlo_opt.core.space.constraint import CONSTRAINT_NAME
from nnlo_opt.core.space.space import TRAIN_PREFIX, Point, Space
from nnlo_opt.core.space.tuples import Tuples
from nnlo_opt.core.training.options import TrainingOptions, model_parameters
from nnlo_opt.core.training.stopping import check_metric
from nnlo_opt.core.trials.figure import figure_name
from nnlo_opt.core.trials.identity import DataFiles
from nnlo_opt.core.trials.objectives import DEFAULT_FIGURE, FIGURE
from nnlo_opt.core.trials.trial import cause_of
from nnlo_opt.engine.data.indexed import is_batched
from nnlo_opt.engine.data.made import Made
from nnlo_opt.engine.loading.spaces import finish_space, space_from_dimensions
from nnlo_opt.engine.models.compiled import Choices, Compiled, outcome_of
from nnlo_opt.engine.models.composite import CompositeModel
from nnlo_opt.engine.models.functions import CALLED_AT_EPOCHS, refuse_unread
from nnlo_opt.engine.models.losses import LossTerm, figures_of, losses_in_words
from nnlo_opt.engine.models.metrics import NO_METRICS, Asked, merging
from nnlo_opt.engine.models.own_optimizer import OwnOptimizer
from nnlo_opt.engine.objective.signature import objective_of, takes

#: said of a run begun by a version that took nothing from `compile`
_AS_BEGUN = "Nothing is taken from `compile`, because an earlier version began this run; a new run uses it."
#: most validation samples on which metrics are tried
_N_TRIED = 256
#: points drawn to find one that is new
_DRAWS_A_POINT = 20


class Inspection:
    """Looks at model and data of a run.

    Args:
        searches: there is a search space, else the model is built as it is.
        n_workers: most workers of a master.
    """

    def __init__(
        self, options: Options, maker: ModelMaker, data: RunData, *, searches: bool, n_workers: int = 1
    ) -> None:
        self._n_workers = n_workers
        self._options = options
        self._maker = maker
        self._data = data
        self._searches = searches

    def inspect(self, space: Space | None) -> Findings:
        """Return the findings; `space` comes from `--search-space`; without it the module has one.

        Raises:
            ConfigurationError: model, space and data are not what they should be, or do not fit together.
        """
        findings = self.look(space)
        if findings.is_objective:
            return findings
        function = self._maker.figure
        findings = replace(
            findings,
            figure_function=None if function is None else {"name": function.name, "sha256": function.sha256},
        )
        return self._inspect_model(findings)

    def look(self, space: Space | None) -> Findings:
        """Return the findings that need no framework; as `inspect`."""
        definition = self._maker.definition
        if definition.kind == "model" and self._maker.follows_compile:
            refuse_unread(definition, self._options.comparison.function)
        space = self._space(space)
        findings = Findings(
            model=definition.name,
            kind=definition.kind,
            source=str(definition.source.resolve()),
            sha256=definition.sha256,
            function=definition.function,
            parts=definition.parts,
            notes=definition.notes,
            space=space,
            trains_itself=definition.trains_itself,
            calls_back=self._maker.calls_back
            and any(name in definition.functions for name in CALLED_AT_EPOCHS.values()),
        )
        if definition.kind == "objective":
            pauses = takes(definition.objective, "checkpoint")
            return replace(findings, figure=self._inspect_objective(space), pauses=pauses)
        if space is None:
            definition.check_parameters(self._options.point)
        else:
            check_space(space, definition, self._options)
        self._data.look_first()
        self._data.use(model_parameters(self._middle(space)))
        verified, data = self._data.verified, self._data.training
        if self._searches and self._options.plan.n_fold == 1 and not len(data.folds[0].validation):
            raise ConfigurationError(
                "A search needs validation data to compare trials. Received: none; give "
                f"`{spelled('val_data', 'LIST')}`, or `{spelled('n_fold')}` of at least 2."
            )
        if batched := is_batched(data.source):
            searched = () if space is None else space.train_names
            if "batch" in self._options.training.given or "train.batch" in searched:
                raise ConfigurationError(
                    f"`{spelled('batch')}` is for samples of which each has a number. Received: it with batches that "
                    f"`get_train` of {definition.source} returns. Leave it out, and set the size there."
                )
        test = self._data.test
        measured = () if test is None else (f"Test data for the saved model: {len(test[1]):,} samples.",)
        return replace(
            findings,
            data=DataFiles(
                files=tuple((str(file.path.resolve()), file.n_samples) for file in data.files),
                n_train=data.n_train,
                n_validation=data.n_validation,
                made=dict(data.made),
            ),
            features_name=data.names[0] or None,
            labels_name=data.names[1] or None,
            counts_batches=batched,
            n_train_smallest=min(len(fold.train) for fold in data.folds),
            remarks=(*self._unnamed_data(), *verified, *measured),
        )

    def _middle(self, space: Space | None) -> Point:
        """Return the parameters that stand for all: the middle of the search space, or those of a training."""
        return space.given(space.middle()) if space else Tuples(self._options.with_tuples).given(self._options.point)

    def _unnamed_data(self) -> list[str]:
        """Return sentences about the data that the model module names or makes, and the command line does not."""
        given, definition, here = self._options.data, self._maker.definition, Path.cwd()
        said = []
        parts = ("Training", given.train_data, "get_train"), ("Validation", given.val_data, "get_val")
        for what, asked, name in parts:
            origin = f"`{name}` of `{self._options.model}`"
            match None if asked is not None else self._data.given(name):
                case Made() as made:
                    said.append(f"{what} data: {made.kind}, from {origin}; each rank holds what it returns.")
                    said += made.remarks
                    if name == "get_val" and made.brings_weights:
                        said.append(f"Weights from {origin} count in training by folds only, and never in validation.")
                case Path() | tuple() as files if files:
                    place = files if isinstance(files, Path) else files[0].parent
                    shown = place.relative_to(here) if place.is_relative_to(here) else place
                    said.append(f"{what} data: `{shown}`, from {origin}.")
        is_cut = self._options.plan.n_fold > 1 or given.train_data is not None
        if not is_cut and self._data.given("get_val") is None:
            why = "returns None" if "get_val" in definition.functions else "is not defined"
            said.append(f"Validation data: none, as `get_val` of `{self._options.model}` {why}.")
        return said

    def _space(self, given: Space | None) -> Space | None:
        if not self._searches:
            return None
        if given is not None:
            return given
        definition, fixed = self._maker.definition, self._options.fix
        function = "objective" if definition.kind == "objective" else "get_model"
        if definition.parameter_range is None:
            raise ConfigurationError(
                f"A search needs a search space. Received: none in `{definition.source}`; give "
                f"`{either('--search-space MODULE', 'space')}`, or set `{function}.parameter_range` in the model "
                "module."
            )
        space = space_from_dimensions(definition.parameter_range, f"{function}.parameter_range of {definition.source}")
        feasible = definition.functions.get(CONSTRAINT_NAME)
        return finish_space(space, feasible, str(definition.source.resolve()), fixed)

    def _inspect_objective(self, space: Space | None) -> str:
        """Return the name of the figure of merit; ConfigurationError for options that an objective has none of."""
        definition, names = self._maker.definition, [] if space is None else space.names
        conditional = [] if space is None else [p for p in space.parameters if p.condition is not None]
        conditions = {parameter.name: str(parameter.condition) for parameter in conditional}
        objective_of(definition.objective, str(definition.source), names, conditions)
        options = self._options
        if options.command is not None and space is not None:
            options.command.template.check(names, conditions)
        if options.plan.n_fold > 1 and not takes(definition.objective, "fold"):
            raise ConfigurationError(
                f"`{spelled('n_fold')}` calls the objective for every fold, which it gets as the argument `fold`. "
                f"Received: {options.plan.n_fold} folds for an objective without; add the argument, or leave "
                f"`{spelled('n_fold')}` out."
            )
        others = ("backend", "keras_backend", "n_processes", "n_masters")
        ignored = (
            _first_change(options.training.to_json(), TrainingOptions().to_json())
            or _first_change(asdict(options.data), asdict(DataOptions()))
            or next((spelled(name) for name in others if getattr(options, name) not in (None, 1)), "")
        )
        if ignored:
            raise ConfigurationError(
                f"An objective module trains by itself: {either('options', 'arguments')} of training and data do not "
                f"reach it. Received: `{ignored}`; leave it out."
            )
        if space is None:
            raise ConfigurationError(
                "An objective module is for a search. Received: one in TrainingDriver; use OptimizationDriver."
            )
        if space.train_names:
            raise ConfigurationError(
                f"Parameters that begin with `train.` set training {either('options', 'arguments')}, and an "
                f"objective has none. Received: {space.train_names[0]!r}."
            )
        comparison = options.comparison
        if comparison.function is not None or comparison.epoch != "last":
            option = spelled("objective_epoch" if comparison.function is None else "figure_of_merit")
            raise ConfigurationError(
                f"`{option}` is for models. Received: an objective module, whose figure of merit is what it returns; "
                "leave it out."
            )
        name = comparison.objectives[0].name
        return "value" if name == FIGURE else name

    def _inspect_model(self, findings: Findings) -> Findings:
        """Return the findings with those on a model at the middle of the search space."""
        space = findings.space
        point = self._middle(space)
        options = self._options.training.with_point(point)
        early, target = check_training(options)
        figures: tuple[str, ...] | None = None
        findings = replace(findings, loss=options.loss)
        try:
            model = self._maker.new_model(model_parameters(point), seed=0)
        except TrialError as error:
            self.refuse_if_alike(error, point, space)
            remarks: tuple[str, ...] = (f"The model could not be built at the middle of the search space: {error}",)
        else:
            if isinstance(model, CompositeModel):
                composite, remarks = self._maker.composite(model, options, 0, self._data)
                figures = composite.figures
                findings = replace(findings, loss=composite.losses_text, optimizers=composite.optimizers)
            else:
                compiled = self._maker.compiled(model, model_parameters(point))
                terms, remarks = self._maker.checked_loss(options, model, compiled, self._data)
                figures = figures_of(terms)
                asked = self._maker.metrics(compiled, terms)
                remarks = (*remarks, *self._maker.remarks_on(options, model, compiled, terms, asked))
                is_new = bool(asked.names) or compiled != Compiled() or self._maker.reads_loss
                takes_metrics = self._maker.follows_metrics and is_new
                findings = replace(
                    findings, loss=losses_in_words(terms), takes_metrics=takes_metrics, metrics=asked.names
                )
                if self._maker.follows_compile:
                    findings = self._with_compiled(findings, model, compiled, options, terms, asked)
                elif getattr(model, "compiled", False) is True:
                    findings = replace(findings, unused=_AS_BEGUN)
                findings, about_metrics = self._with_merging(findings, model, terms, asked)
                own = compiled.own if options.with_steps(findings.steps).own_optimizer else None
                about_steps = self._length_of_schedule(findings, options), own.remark if own else ""
                said = findings.taken, findings.unused, *about_steps
                remarks = (*filter(None, said), *about_metrics, *remarks)
        figure = DEFAULT_FIGURE
        if figures is not None:
            measured = (*figures, *findings.metrics) if self._validates else ()
            known = (*figures, *findings.merging, *(f"val_{name}" for name in measured))
            if early:
                check_metric(early.metric, known, spelled("early_stopping"))
            if target:
                check_metric(target.metric, known, spelled("target_metric"))
            check_objectives(self._options.comparison, known)
            figure = figure_name(known)
            findings = self._with_callbacks(findings, figures, options.with_steps(findings.steps))
        first, function = self._options.comparison.objectives[0], self._maker.figure
        if function is not None and first.name == FIGURE:
            figure = function.name
        elif first.name != FIGURE:
            figure = first.name
        self._maker.release()
        return replace(findings, figure=figure, remarks=(*findings.remarks, *remarks))

    def _with_callbacks(self, findings: Findings, figures: Sequence[str], options: TrainingOptions) -> Findings:
        """Return the findings with those on `get_callbacks`; `figures`: losses and accuracies of the model."""
        searched = () if findings.space is None else findings.space.train_names
        is_scheduled = any(TRAIN_PREFIX + name in searched for name in ("lr_schedule", "warmup_epochs"))
        made = self._maker.callbacks(figures, options, validates=self._validates, is_scheduled=is_scheduled)
        if made is not None:
            what = "Schedule" if hasattr(self._maker.framework, "epoch_scheduler") else "Callbacks"
            said = f"{what} of every training, from `{CALLED_AT_EPOCHS[what]}`: {made}."
        elif not self._maker.calls_back and "get_callbacks" in self._maker.definition.functions:
            said = "`get_callbacks` is not called, as in the version that began this run; a new run calls it."
        else:
            return findings
        return replace(findings, remarks=(*findings.remarks, said))

    @property
    def _validates(self) -> bool:
        return any(len(fold.validation) for fold in self._data.training.folds)

    @property
    def _unmeasured(self) -> str:
        """Why metrics are not computed; empty if they are."""
        return "" if self._maker.follows_metrics else "as in the version that began this run"

    def _with_merging(
        self, findings: Findings, model: Any, terms: Sequence[LossTerm], asked: Asked
    ) -> tuple[Findings, tuple[str, ...]]:
        """Return the findings with the metrics whose states add up over samples, and sentences about the others.

        Raises:
            ConfigurationError: a metric is no number, or cannot be computed.
        """
        remarks = []
        if "get_metrics" in self._maker.definition.functions:
            remarks += [f"Not measured: {', '.join(asked.unfit)} (no output has classes)."] * bool(asked.unfit)
        if not asked.metrics:
            return findings, tuple(remarks)
        data, validates = self._data.training, self._validates
        source = data.source
        rows = next(rows for fold in data.folds if len(rows := fold.validation if validates else fold.train))
        n_tried = 2 if is_batched(source) else _N_TRIED
        some = rows[:: max(1, len(rows) // n_tried)][:n_tried]
        x, y = map(padded, source.read(some))

        def adapter_of(asked: Asked) -> FrameworkAdapter:
            adapter = self._maker.adapter(model, terms, asked, None)
            figures_over(adapter, lambda: [(x, y)])  # raises for what is no number
            return adapter

        try:
            adapter = adapter_of(asked)
            found = merging(adapter, x, y) if len(some) > 1 else ()
        except TrialError as error:
            for one in asked.metrics:
                try:
                    adapter_of(Asked((one,)))
                except TrialError as of_one:
                    shape = [*leaves(self._data.info.label_shape)][one.output]
                    reason = str(of_one).rstrip(".")
                    raise ConfigurationError(
                        "A metric must be computed by the model's framework from its outputs and the labels. Received: "
                        f"{one.name}, with labels of shape {tuple(shape)}; {reason}. Choose another metric, or write "
                        "it with operations of the framework."
                    ) from of_one
            raise ConfigurationError(f"Metrics must be computed on some samples. Received: {error}") from error
        if others := [name for name in asked.names if name not in found]:
            where = "Computed by one worker on all validation samples, and not" if validates else "Not computed"
            remarks.append(f"{where} in training, as its parts do not add up: {', '.join(others)}.")
        self._maker.merging = found
        return replace(findings, merging=found), tuple(remarks)

    def _with_compiled(
        self,
        findings: Findings,
        model: Any,
        compiled: Compiled,
        options: TrainingOptions,
        terms: Sequence[LossTerm],
        asked: Asked,
    ) -> Findings:
        """Return the findings with those on the `compile` of a model; `options` have the values of its point."""
        if compiled == Compiled():
            return findings
        steps = compiled.brings(options)
        options = options.with_steps(steps)
        check_training(options)
        if options.own_optimizer:
            self._try_optimizer(model, compiled, options, terms)
        own = compiled.own if options.own_optimizer else None
        schedule = own.schedule_beside(options.rate_of_own) if own else ""
        choices = Choices(
            training=options,
            searched=() if findings.space is None else findings.space.train_names,
            functions=self._maker.definition.functions,
            varies=findings.space is not None and bool(findings.space.model_names),
            unmeasured=self._unmeasured if asked.metrics or not self._maker.follows_metrics else "",
        )
        outcome = outcome_of(compiled, choices, terms, asked)
        return replace(
            findings,
            compiled=True,
            takes_optimizer=self._maker.follows_optimizer,
            steps=steps,
            schedule=schedule,
            n_scheduled=own.n_scheduled if own and schedule else None,
            replaced=outcome.replaced,
            taken=outcome.taken,
            unused=outcome.unused,
        )

    def _length_of_schedule(self, findings: Findings, options: TrainingOptions) -> str:
        """Return a sentence on the epochs of a schedule that counts steps; empty if there is none."""
        if not findings.schedule:
            return ""
        n_epoch = findings.steps_an_epoch(options.batch, self._n_workers)
        where = "" if findings.space is None else " at the middle of the search space"
        counts = "counts" if findings.n_scheduled is None else f"lasts {findings.n_scheduled:,}"
        return f"{findings.schedule} {counts} steps of the optimizer, of which an epoch has {n_epoch:,}{where}."

    def _try_optimizer(
        self, model: Any, compiled: Compiled, options: TrainingOptions, terms: Sequence[LossTerm]
    ) -> None:
        """Raise ConfigurationError if an optimizer that the framework runs cannot take or save a step."""
        try:
            self._maker.adapter(model, terms, NO_METRICS, ())
            own = self._maker.with_own(options, self._n_workers).own
            if isinstance(own, OwnOptimizer):
                own.try_step()
        except TrialError as error:
            raise ConfigurationError(f"{compiled.optimizer} must take a step. Received: {error}") from error

    def refuse_if_alike(self, error: TrialError, point: Point, space: Space | None) -> None:
        """Raise ConfigurationError if the model fails at `--max-failures` points as at `point`, or at all if fewer."""
        if space is None:
            raise ConfigurationError(str(error)) from error
        most, rng = self._options.plan.budget.n_alike_failures or 0, np.random.default_rng(self._options.seed)
        drawn = [point, *(space.sample(rng) for _ in range(_DRAWS_A_POINT * most))]
        points = [*{str(model_parameters(other)): other for other in drawn}.values()][:most]
        for other in points[1:]:
            try:
                self._maker.new_model(model_parameters(other), seed=0)
            except TrialError as failed:
                if cause_of(str(failed), other) == cause_of(str(error), point):
                    continue
            return
        if points:
            raise ConfigurationError(
                f"A model must be built at some point of its search space. Received: {error} So it failed at "
                f"{len(points)} point{'s' * (len(points) > 1)}. Correct it; `{spelled('max_failures', 0)}` searches "
                "anyway."
            ) from error


#: value of a run -> the option that sets it, if that has another name
_OPTION_OF = {"cache": "cache_data", "memory_bytes": "memory_limit", "n_ahead": "preload_data"}


def _first_change(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> str:
    """Return the first option without its default value; empty if there is none."""
    changed = next((name for name, value in values.items() if value != defaults[name]), "")
    if changed == "shuffle":
        return spelled("shuffle", False)
    return spelled(_OPTION_OF.get(changed, changed)) if changed else ""
