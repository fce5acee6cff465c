"""Ensemble of trained trials, selected greedily on one half of the validation samples.

R. Caruana et al., "Ensemble Selection from Libraries of Models" (ICML 2004): forward selection (section 2) with
replacement (2.1), starting from the best models (2.2). Bagging of models (2.3) is for libraries of thousands.

The prediction of a trial for a sample comes from the model of the fold that validates the sample, so no model is judged
by samples that it was trained on. In the ensemble a trial is the mean of the models of its folds.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np

from nnlo_opt.app.run.workload.run_data import cut
from nnlo_opt.app.run.workload.workload import ModuleWorkload
from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.base.records import Frozen
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.block.task import validation_batch
from nnlo_opt.core.data.ragged import padded
from nnlo_opt.core.data.source import Indices
from nnlo_opt.core.models.adapter import Measuring, Predictor
from nnlo_opt.core.training.options import model_parameters
from nnlo_opt.core.trials.attempts import result_directory
from nnlo_opt.core.trials.checkpoint import WEIGHTS_NAME, load_weights
from nnlo_opt.core.trials.figure import epoch_value
from nnlo_opt.core.trials.identity import DataFiles
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.objectives import FIGURE
from nnlo_opt.core.trials.trial import Trial
from nnlo_opt.engine.data.indexed import is_batched
from nnlo_opt.engine.models.framework import framework_of

#: outputs of a model, each (n, ...)
Outputs: TypeAlias = list[np.ndarray]
#: figures on the half of the samples used for selection, and on the other half
Figures: TypeAlias = tuple[float, float]


class EnsembleSetup(Frozen):
    """Request for an ensemble of the trials of a run."""

    run: Path
    ledger: Ledger
    workload: ModuleWorkload
    #: most selections of trials
    size: int
    #: seed for splitting the samples into halves
    seed: int
    #: file of the saved model; its suffix is replaced by the framework's
    path: Path


class Ensemble(Frozen):
    """Selected trials with their figures."""

    #: trial -> number of times that it was selected, most frequent first
    counts: dict[int, int]
    figures: Figures
    #: the best single trial on the half used for selection
    single: int
    single_figures: Figures
    #: number of samples of each half
    n_samples: tuple[int, int]
    #: number of trials that could be selected
    n_trials: int
    path: Path


def select(outputs: Sequence[Outputs], size: int, loss_of: Callable[[Outputs], tuple[float, ...]]) -> list[int]:
    """Return the numbers of the selected models, repeated for repeated selections.

    Args:
        outputs: outputs of every model for the samples used for selection.
        size: most selections, at least 1.
        loss_of: returns the numbers to minimise, in order of priority, for the outputs of an ensemble.
    """

    def grown(totals: Outputs, model: int) -> Outputs:
        return [total + own for total, own in zip(totals, outputs[model], strict=True)]

    def loss(totals: Outputs, n: int) -> tuple[float, ...]:
        return loss_of([total / n for total in totals])

    alone = sorted(range(len(outputs)), key=lambda model: loss_of(outputs[model]))
    totals = [np.zeros_like(output) for output in outputs[0]]
    starts = []
    for n, model in enumerate(alone[:size], 1):
        totals = grown(totals, model)
        starts.append((loss(totals, n), n, totals))
    least, n_first, totals = min(starts, key=lambda start: start[:2])
    chosen = kept = alone[:n_first]
    for n in range(n_first + 1, size + 1):
        reached, model = min((loss(grown(totals, model), n), model) for model in range(len(outputs)))
        totals, chosen = grown(totals, model), [*chosen, model]
        if reached < least:
            least, kept = reached, chosen
    return kept


def make_ensemble(setup: EnsembleSetup) -> Ensemble:
    """Select an ensemble, evaluate it, and save its model.

    Raises:
        ConfigurationError: there are too few trials, their outputs cannot be averaged, or the figure of merit cannot be
            computed from outputs.
    """
    samples = setup.workload.data
    for trial in setup.ledger.trials[:1]:
        samples.use(model_parameters(trial.point))
    if samples.varies or is_batched(samples.training.source):
        raise ConfigurationError(
            "An ensemble is selected on samples that are the same for all trials, and have numbers. Received: a run "
            "whose `get_train` takes parameters, or returns batches. Take its best model."
        )
    data, objective = samples.training, setup.workload.options.comparison.objectives[0]
    trials, rows = _trials(setup), np.sort(np.concatenate([fold.validation for fold in data.folds]))
    try:
        judge, outputs = _predicted(setup, trials, rows)
    except TrialError as error:
        raise ConfigurationError(f"An ensemble needs models whose outputs have a mean. Received: {error}.") from error
    others = setup.workload.maker.measured
    if objective.name not in (FIGURE, *(f"val_{name}" for name in (*judge.figures, *others))):
        raise ConfigurationError(_rule(objective.name))
    halves = _halves(setup, rows)
    labels = [padded(data.source.read_labels(rows[half])) for half in halves]
    of_half = [[[output[half] for output in of_trial] for of_trial in outputs] for half in halves]

    def measured(outputs: Outputs, half: int) -> tuple[float, float]:
        """Return the figure of merit and the loss of outputs for the samples of a half."""
        metrics = judge.measure(outputs, labels[half]).means()
        if objective.name.removeprefix("val_") in others:
            metrics |= cast(Measuring, judge).measure_others(outputs, labels[half])
        return epoch_value(objective.name, {f"val_{name}": value for name, value in metrics.items()}), metrics["loss"]

    def loss_of(outputs: Outputs) -> tuple[float, ...]:
        value, loss = measured(outputs, 0)
        return tuple(number if np.isfinite(number) else np.inf for number in (objective.loss(value), loss))

    def figures(chosen: Sequence[int]) -> Figures:
        first, second = (measured(_mean([of_trial[n] for n in chosen]), half) for half, of_trial in enumerate(of_half))
        return first[0], second[0]

    (single,) = select(of_half[0], 1, loss_of)
    chosen = select(of_half[0], setup.size, loss_of)
    counts = dict(Counter(trials[number].number for number in chosen).most_common())
    return Ensemble(
        counts=counts,
        figures=figures(chosen),
        single=trials[single].number,
        single_figures=figures([single]),
        n_samples=(len(halves[0]), len(halves[1])),
        n_trials=len(trials),
        path=_save(setup, counts),
    )


def _rule(compared_by: str) -> str:
    return (
        "An ensemble is selected by a metric on validation samples. Received: a run that compares trials "
        f"by {compared_by}. Take its best model, or search by `{spelled('objective', 'val_loss:min')}`."
    )


def _mean(outputs: Sequence[Outputs]) -> Outputs:
    return [np.mean(same, axis=0) for same in zip(*outputs, strict=True)]


def _trials(setup: EnsembleSetup) -> list[Trial]:
    """Return the trials that can be selected; ConfigurationError if there are none, or they cannot be compared."""
    comparison, known = setup.workload.options.comparison, setup.ledger.identity.data or DataFiles()
    first, data = comparison.objectives[0].name, setup.workload.data.training
    # Options from a journal have no function, because it is code.
    function = comparison.function or (setup.ledger.identity.plain.get("figure_function") or {}).get("name")
    if function or not comparison.is_of_epochs or not (first.startswith("val_") or first == FIGURE):
        raise ConfigurationError(_rule(function or first))
    if setup.workload.maker.definition.trains_itself:
        raise ConfigurationError(
            "An ensemble is the mean of single models. Received: a run of composites of several. Take its best model."
        )
    if (known.n_train, known.n_validation) != (data.n_train, data.n_validation):
        raise ConfigurationError(
            f"The data of a run must not have changed. Received: {data.n_train:,} training and "
            f"{data.n_validation:,} validation samples in place of {known.n_train:,} and "
            f"{known.n_validation:,}. Restore the files."
        )
    complete = [trial for trial in setup.ledger.trials if trial.feasible]
    trials = [trial for trial in complete if all((place / WEIGHTS_NAME).exists() for place in _places(setup, trial))]
    if len(trials) < 2:
        raise ConfigurationError(
            f"An ensemble needs at least two complete trials whose weights are kept. Received: {len(trials)} of "
            f"{len(complete)} in `{setup.run}`. Run more trials, or keep more weights by `--keep-weights`."
        )
    return trials


def _places(setup: EnsembleSetup, trial: Trial) -> list[SafePath]:
    """Return the folders with the weights of the folds of a trial."""
    return [result_directory(setup.run, trial, fold) for fold in range(len(setup.workload.data.training.folds))]


def _predicted(setup: EnsembleSetup, trials: Sequence[Trial], rows: Indices) -> tuple[Predictor, list[Outputs]]:
    """Return an adapter for evaluating outputs, and the outputs of each trial for the samples `rows`."""
    data, outputs, judge = setup.workload.data.training, list[Outputs](), None
    for trial in trials:
        found: Outputs = []
        for fold, place in zip(data.folds, _places(setup, trial), strict=True):
            adapter = cast(Predictor, setup.workload.trained_model(trial.point, *load_weights(place), seed=0))
            numbers = fold.validation
            n_parts = -(-len(numbers) // validation_batch(setup.workload.options.training))
            parts = [adapter.predict(padded(data.source.read(part)[0])) for part in np.array_split(numbers, n_parts)]
            if len({tuple(output.shape[1:] for output in part) for part in parts}) > 1:
                raise TrialError("its outputs are as long as the samples, which differ")
            of_fold = [np.concatenate(of_parts) for of_parts in zip(*parts, strict=True)]
            found = found or [np.empty((len(rows), *output.shape[1:]), np.float32) for output in of_fold]
            for output, part in zip(found, of_fold, strict=True):
                output[np.searchsorted(rows, numbers)] = part
            if judge is None:
                judge = adapter
            else:
                adapter.release()
        outputs.append(found)
    assert judge is not None
    return judge, outputs


def _halves(setup: EnsembleSetup, rows: Indices) -> tuple[Indices, Indices]:
    """Return the positions in `rows` of the samples of each half, split like folds: by classes, or by groups."""
    by, source = setup.workload.options.data.fold_by, setup.workload.data.training.source
    first, second = cut(source, by, 2, setup.seed, rows)
    return first.validation, second.validation


def _save(setup: EnsembleSetup, counts: Mapping[int, int]) -> Path:
    """Save the mean of the models of the selected trials; return the path."""
    models, weights, n = [], [], sum(counts.values())
    for number, count in counts.items():
        places = _places(setup, trial := setup.ledger.trials[number])
        for place in places:
            adapter = setup.workload.trained_model(trial.point, *load_weights(place), seed=0)
            models.append(cast(Predictor, adapter).synced_model())
            weights.append(count / n / len(places))
    framework = framework_of(models[0])
    assert framework is not None
    path = setup.path.with_suffix(framework.SUFFIX)
    framework.save_mean(models, weights, path)
    return path
