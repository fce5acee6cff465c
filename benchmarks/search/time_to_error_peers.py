"""The scripts of `time_to_error.py`: `model.fit` of a Keras model under Optuna, Ray Tune, and `nnlo_opt.optimize`.

Each is what a person would write: the data are read once, each trial builds, compiles and fits the model, and a
callback reports its epochs. An epoch adds a line to the file `epochs` of the folder: [unix seconds, epoch, validation
error]. It is run as `python -c "from time_to_error_peers import main; main()" SYSTEM ...`, with this checkout and this
folder in PYTHONPATH, because Ray's workers import what they call.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from nnlo_opt.engine.loading.modules import load_module
from nnlo_opt.engine.loading.spaces import load_space
from nnlo_opt.space import Categorical, Integer, Parameter, Point, Real

#: as the pruners of all are told
ETA = 3


@dataclass(frozen=True)
class Task:
    """What one process is to do: its options, and what follows from them."""

    system: str
    model: str
    space: str
    #: folder of `GetData mnist`
    data: Path
    #: what the trials leave behind
    folder: Path
    seed: int
    #: number of this process among those of the search
    worker: int
    n_workers: int
    n_trials: int
    n_epochs: int

    @property
    def parameters(self) -> list[Parameter]:
        """Those of the space, training options by their names alone."""
        return [replace(each, name=each.name.removeprefix("train.")) for each in load_space(self.space).parameters]

    def train(self, point: Point, goes_on: Callable[[int, float], bool]) -> tuple[int, float]:
        """Train until the last epoch, or until `goes_on(epoch, error)` is False: epochs and validation error."""
        import keras

        x, y, validation = _ready(self.data, self.seed * self.n_workers + self.worker)
        keras.backend.clear_session()
        arguments = dict(point)
        optimizer = keras.optimizers.Adam(arguments.pop("learning_rate"))
        batch_size = arguments.pop("batch", 100)  # what ours takes, too
        model = load_module(self.model, "A model must be a file").get_model(**arguments)
        model.compile(optimizer, "categorical_crossentropy", metrics=["accuracy"])
        errors = list[float]()

        def ended(epoch: int, logs: dict[str, float]) -> None:
            errors.append(round(1 - logs["val_accuracy"], 6))
            with (self.folder / "epochs").open("a") as file:
                file.write(json.dumps([time.time(), epoch + 1, errors[-1]]) + "\n")
            if not goes_on(epoch + 1, errors[-1]):
                model.stop_training = True

        model.fit(
            x,
            y,
            batch_size=batch_size,
            epochs=self.n_epochs,
            validation_data=validation,
            callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=ended)],
            verbose=0,
        )
        return len(errors), errors[-1]


@cache
def _ready(data: Path, seed: int) -> tuple[Any, Any, tuple[Any, Any]]:
    """Training samples and labels, and those of the validation; once in a process, which computes with one thread."""
    import h5py
    import keras
    import numpy as np
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    keras.utils.set_random_seed(seed)
    parts = dict[str, Any]()
    for kind in ("train", "test"):
        files = [h5py.File(path) for path in sorted(data.glob(f"mnist_{kind}_*.h5"))]
        parts[kind] = [np.concatenate([file[name][:] for file in files]) for name in ("features", "labels")]
    return *parts["train"], (*parts["test"],)


def in_optuna(task: Task) -> None:
    """One of the processes that share a study."""
    import optuna
    from optuna.storages.journal import JournalFileBackend
    from search_engines import optuna_distribution

    pruner: Any = {
        "optuna-tpe": optuna.pruners.NopPruner,
        "optuna-tpe-halving": lambda: optuna.pruners.SuccessiveHalvingPruner(1, ETA),
        "optuna-tpe-hyperband": lambda: optuna.pruners.HyperbandPruner(1, task.n_epochs, ETA),
    }[task.system]()
    study = optuna.create_study(
        study_name="digits",
        storage=optuna.storages.JournalStorage(JournalFileBackend(str(task.folder / "study"))),
        sampler=optuna.samplers.TPESampler(seed=task.seed * task.n_workers + task.worker),
        pruner=pruner,
        load_if_exists=True,
    )
    distributions = {parameter.name: optuna_distribution(parameter) for parameter in task.parameters}
    while len(study.get_trials(deepcopy=False)) < task.n_trials:
        trial = study.ask(distributions)

        def goes_on(epoch: int, error: float, trial: optuna.Trial = trial) -> bool:
            trial.report(error, epoch)
            return not trial.should_prune()

        n_epochs, error = task.train(trial.params, goes_on)
        if n_epochs == task.n_epochs:
            study.tell(trial, error)
        else:
            study.tell(trial, state=optuna.trial.TrialState.PRUNED)


def in_ray(task: Task) -> None:
    """The driver of a search with ASHA over random points, whose workers keep their processes with TensorFlow."""
    import ray
    from ray import tune

    def train(point: Point) -> None:
        def goes_on(_: int, error: float) -> bool:
            tune.report({"error": error})  # does not return if the trial is to stop
            return True

        task.train(point, goes_on)

    def domain(parameter: Parameter) -> Any:
        if isinstance(parameter, Categorical):
            return tune.choice([*parameter.categories])
        assert isinstance(parameter, Real | Integer)
        log, low, high = parameter.prior == "log-uniform", parameter.low, parameter.high
        if isinstance(parameter, Integer):
            return (tune.lograndint if log else tune.randint)(low, high + 1)
        return (tune.loguniform if log else tune.uniform)(low, high)

    # Paths of Ray's sockets have a limit, so its folder is not in that of the task.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        ray.init(num_cpus=task.n_workers, include_dashboard=False, _temp_dir=folder)
        tune.Tuner(
            train,
            param_space={parameter.name: domain(parameter) for parameter in task.parameters},
            tune_config=tune.TuneConfig(
                metric="error",
                mode="min",
                num_samples=task.n_trials,
                scheduler=tune.schedulers.ASHAScheduler(max_t=task.n_epochs, grace_period=1, reduction_factor=ETA),
                search_alg=tune.search.BasicVariantGenerator(random_state=task.seed),
                reuse_actors=True,
            ),
            run_config=tune.RunConfig(storage_path=str(task.folder / "ray"), verbose=0),
        ).fit()
        ray.shutdown()


def in_optimize(task: Task) -> None:
    """The script whose processes `nnlo_opt.optimize` forks."""
    import nnlo_opt

    nnlo_opt.optimize(
        lambda parameters, report: task.train(parameters, report)[1],
        task.parameters,
        num_iterations=task.n_trials,
        n_parallel=task.n_workers,
        seed=task.seed,
        checkpoint=str(task.folder / "run"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, kind in Task.__annotations__.items():
        parser.add_argument(name, type=kind)
    task = Task(**vars(parser.parse_args()))
    {"optuna": in_optuna, "ray": in_ray, "optimize": in_optimize}[task.system.split("-")[0]](task)
