"""Loads trained models of a run from its files.

The journal has absolute paths, so the working folder does not matter. One data file is opened, because a model is built
for the shape of its samples. Nothing here needs MPI.
"""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from nnlo_opt.app.run.afterwards.best_model import BEST_MODEL, best_fold
from nnlo_opt.app.run.options.values import DataOptions, Options
from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.workload.model_maker import ModelMaker
from nnlo_opt.app.run.workload.run_data import RunData, TrainingData
from nnlo_opt.app.run.workload.workload import ModuleWorkload
from nnlo_opt.core.base.errors import CheckpointError, ConfigurationError, TrialError
from nnlo_opt.core.models.adapter import Predictor
from nnlo_opt.core.training.options import MODES, TrainingOptions
from nnlo_opt.core.trials.attempts import result_directory
from nnlo_opt.core.trials.checkpoint import WEIGHTS_NAME, load_weights
from nnlo_opt.core.trials.identity import DataFiles, ModelFile, followed_in
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_directory import RunRequest
from nnlo_opt.core.trials.trial import Trial
from nnlo_opt.engine.models.builders import builtin_names, model_file, open_model
from nnlo_opt.engine.models.framework import framework_for
from nnlo_opt.engine.runtime.devices import NodeShare


class _FirstFile(RunData):
    """Samples of one data file, or those that the model module makes, which determine the shapes of the model."""

    def __init__(self, options: Options, maker: ModelMaker, files: Sequence[Path]) -> None:
        super().__init__(options, maker)
        self._files = files

    def read(self) -> TrainingData:
        if not self._files:
            return super().read()
        source, names = self.source(self._files)
        return TrainingData(source=source, folds=[], n_train=0, names=names)


class TrainedModels(ModuleWorkload):
    """Workload of an earlier run, in a process that does not train.

    Args:
        run: directory of the run.
        ledger: the run's state, from its journal.
        named: model file named by the user; None for the one in the journal, which must belong to this user.

    Raises:
        ConfigurationError: the run has not trained a model; the model is defined only in its script; its file has
            changed; its file is another user's, and must be named explicitly to be executed.
    """

    def __init__(self, run: Path, ledger: Ledger, named: str | None = None) -> None:
        identity, model = ledger.identity, ledger.identity.model
        if model.function:
            raise ConfigurationError(
                f"The model of a run must be defined in a file to be built again. Received: `{run}`, whose trials "
                f"call `{model.function}` of the script `{model.source}`. Resume it there by `opt_restore=True`."
            )
        trained = identity.training.plain
        if trained.get("mode") not in MODES:  # models do not depend on it
            trained = trained | {"mode": MODES[0]}
        options = Options(
            model=named or (model.name if _is_builtin(model) else model.source),
            model_sha256=model.sha256 if named is None else None,
            training=TrainingOptions.of(trained),
            run=RunRequest(root=run.parent, name=None),
            **followed_in(identity.plain),
            data=DataOptions(
                features_name=identity.features_name,
                labels_name=identity.labels_name,
                external_data=ledger.settings.reads_external_data,
            ),
        )
        n_cores = len(os.sched_getaffinity(0))
        files = [Path(path) for path, n_samples in (identity.data or DataFiles()).files if n_samples]
        context = ProcessContext(share=NodeShare(n_threads=n_cores, n_cores=n_cores))
        maker = ModelMaker(options, context)
        data = _FirstFile(options, maker, files[:1])
        tuples = ledger.identity.tuples
        super().__init__(options, context, searches=not ledger.is_training, maker=maker, data=data, tuples=tuples)
        self._run = run
        prepare(self, run, ledger)

    def model(self, trial: Trial, fold: int) -> Any:
        """Return the Keras model or the torch module of a fold with trained weights, for predictions."""
        place = result_directory(self._run, trial, fold)
        try:
            weights = load_weights(place)
        except CheckpointError as error:
            why = error if (place / WEIGHTS_NAME).exists() else f"`{place}` holds none"
            raise ConfigurationError(
                f"A trial must have its trained weights. Received: trial {trial.number}, {trial.state} ({why}). Train "
                f"it again by `TrainingDriver --from-run {self._run}:{trial.number}`."
            ) from error
        try:
            adapter = self.trained_model(trial.point, *weights, seed=0)
        except TrialError as error:
            raise ConfigurationError(f"The model of trial {trial.number} cannot be built again. {error}") from error
        model = cast(Predictor, adapter).synced_model()
        return model.cpu().eval() if self.maker.framework.SUFFIX == ".pt" else model


def _is_builtin(model: ModelFile) -> bool:
    """Return True if the model of a run is built in; the run may have used another installation of this package."""
    if model.name not in builtin_names():
        return False
    own = hashlib.sha256(model_file(model.name).read_bytes()).hexdigest()
    return own == model.sha256 or not os.path.exists(model.source)


def prepare(workload: ModuleWorkload, run: Path, ledger: Ledger) -> None:
    """Import the framework of a run's model; ConfigurationError if the run has no weights of this model."""
    workload.data.look_first()
    definition = workload.maker.definition
    if definition.kind == "objective":
        raise ConfigurationError(f"The run must have trained models. Received: `{run}`, whose objective returns none.")
    if definition.sha256 != ledger.identity.model.sha256:
        raise ConfigurationError(
            f"The weights of a run must belong to its model. Received: `{definition.source}`, which has changed "
            f"since. Restore the file, or train the trial again by `--from-run` with `--model {definition.source}`."
        )
    workload.prepare()


def trained_model(run: Path, ledger: Ledger, trial: Trial, fold: int | None = None, named: str | None = None) -> Any:
    """Return the model of a trial with trained weights, by default of its best fold.

    If the best model cannot be built (its script, data or file is missing, or another user's), the saved model is
    loaded: by Keras, without executing code from it, or by torch, if only this user can have written the file.

    Raises:
        ConfigurationError: there is no such model.
    """
    saved = None
    if fold is None:
        fold = best_fold(trial, ledger.direction) if trial.folds else 0
        if ledger.complete and trial is ledger.result and named is None:
            saved = next(run.glob(f"{BEST_MODEL}.*"), None)
    try:
        return TrainedModels(run, ledger, named).model(trial, fold)
    except ConfigurationError:
        if saved is not None:
            with suppress(ConfigurationError):
                framework = framework_for(saved)
                framework.import_framework(len(os.sched_getaffinity(0)))
                return open_model(str(saved), sha256="").build({}, framework)
        raise
