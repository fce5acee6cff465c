"""Retrains or saves trials of earlier runs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nnlo_opt.app.commands.arguments import Parser
from nnlo_opt.app.commands.driver_parsers import DRIVERS, given_of
from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.app.reporting.terminal import fitted
from nnlo_opt.app.reporting.words import counted, point_text
from nnlo_opt.app.run.afterwards.best_model import BEST_MODEL, best_fold, weights_text, without_validation
from nnlo_opt.app.run.afterwards.trained_models import TrainedModels, prepare
from nnlo_opt.app.run.options.making import optimization_options, training_options
from nnlo_opt.app.run.options.of_journal import without_code
from nnlo_opt.app.run.options.table import BY_NAME, MODEL_AND_DATA, NAMED_MODEL, READING, SEED, TRAINING
from nnlo_opt.app.run.options.values import Options
from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.start.earlier import ledger_of
from nnlo_opt.app.run.workload.workload import ModuleWorkload
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.space.space import TRAIN_PREFIX
from nnlo_opt.core.training.options import model_parameters
from nnlo_opt.core.trials.attempts import result_directory
from nnlo_opt.core.trials.identity import followed_in
from nnlo_opt.core.trials.kept_weights import weights_of
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_directory import existing_run
from nnlo_opt.core.trials.trial import Trial

#: options of `nnlo-opt best-model`
BEST_MODEL_OPTIONS = (NAMED_MODEL,)
#: options of a run that name files
_FILES = ("model", "train_data", "val_data", "test_data", "search_space", "figure_of_merit", "from_run")
#: options of a run that apply when one of its trials is retrained
_TAKEN = {option.name for option in (*MODEL_AND_DATA, *READING, *TRAINING, SEED)}


def training_again(given: Mapping[str, Any], argv: Sequence[str]) -> Options:
    """Return the options for retraining the trial of `--from-run`; `given`: name -> text of options."""
    run, number = _named(given["from_run"])
    ledger = ledger_of(run, "--from-run")
    if ledger.identity.data is None:
        raise ConfigurationError(
            f"`--from-run` must name a run that has trained models. Received: `{run}`, whose objective trains by "
            f"itself. `nnlo-opt best {run}` prints its best point."
        )
    trial = _trial(run, ledger, number)
    of_run = {name: text for name, text in _given(run, ledger).items() if name in _TAKEN and name not in given}
    harmless = without_code(of_run, run, needed=("mode",))
    options = training_options({**harmless, **given}, argv)
    left_out = [BY_NAME[name].flag for name in of_run if name not in harmless]
    pooled = given.keys().isdisjoint({"train_data", "val_data"})
    more = without_validation(run, trial, options.training.with_point(trial.point)) if pooled else {}
    whole = (trial.point | more).items()
    point = {name: value for name, value in whole if name.removeprefix(TRAIN_PREFIX) not in given}
    where = f"trial {trial.number} of `{run}`{', on all its data' * pooled}"
    return replace(
        options,
        model_sha256=None if given.get("model") else ledger.identity.model.sha256,
        training=options.training.with_point(point),
        data=replace(options.data, pooled=pooled),
        point=model_parameters(point),
        **followed_in(ledger.identity.plain),
        with_tuples=ledger.identity.with_tuples,
        remarks=(
            *options.remarks,
            f"Training again {where}: {point_text(point)}",
            *(f"`{flag}` of the run is not executed: give it again if it is needed." for flag in left_out),
        ),
    )


def model_of_run(run: Path, model: str | None) -> tuple[Ledger, ModuleWorkload]:
    """Return the ledger of a run and its workload in this process, with the framework imported.

    `model`: file of the model given by the user; None for the one in the journal.

    Raises:
        ConfigurationError: the run has no model, or its model file has changed or belongs to another user.
    """
    ledger = ledger_of(run, "RUN_DIRECTORY")
    _trial(run, ledger, "")
    if ledger.identity.data is None:
        raise ConfigurationError(f"The run must have trained models. Received: `{run}`, whose objective returns none.")
    given = without_code(_given(run, ledger), run) | ({"model": model} if model else {})
    options = training_options(given) if ledger.is_training else optimization_options(given)
    sha256 = None if model else ledger.identity.model.sha256
    options = replace(options, model_sha256=sha256, **followed_in(ledger.identity.plain))
    searches, tuples = not ledger.is_training, ledger.identity.tuples
    workload = ModuleWorkload(options, ProcessContext(), searches=searches, tuples=tuples)
    prepare(workload, run, ledger)
    return ledger, workload


def best_model(parser: Parser, argv: Sequence[str]) -> None:
    """Save the best model of a run, even if the run was interrupted."""
    arguments = parser.values_of_run(argv)
    run, ledger = arguments.run, read_ledger(arguments.run)
    trial = _trial(run, ledger, "")
    if ledger.identity.data is None and (saves := weights_of(run, trial)):
        print(fitted(f"Trial {trial.number} last saved itself in {', '.join(f'`{path}`' for path in saves)}."))
        return
    models = TrainedModels(run, ledger, arguments.model)
    fold = best_fold(trial, ledger.direction) if trial.folds else 0
    path, _ = models.export(trial.point, result_directory(run, trial, fold), (run / BEST_MODEL).absolute())
    weights = weights_text(run, trial, ledger.direction) if trial.folds else "with the weights of its last checkpoint"
    print(fitted(f"Saved trial {trial.number} as `{run / path.name}`, {weights}."))


def _named(text: str) -> tuple[Path, str]:
    """Split the value of `--from-run` into the run, whose path may contain colons, and the trial's number, or ""."""
    name, colon, number = text.rpartition(":")
    return (existing_run(name), number) if colon and not Path(text).exists() else (existing_run(text), "")


def _given(run: Path, ledger: Ledger, before: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Return name -> text of the options of the last start of a run; ConfigurationError if no driver started it.

    `before`: runs that led to this one by `--from-run`.
    """
    program, *argv = ledger.settings.command_line or ["an unknown program"]
    if program not in DRIVERS:
        raise ConfigurationError(
            f"The run must be of {' or '.join(DRIVERS)}. Received: `{run}`, of {program}, whose model only its script "
            "knows. Resume it there by `opt_restore=True`."
        )
    given, _ = given_of(program, argv)
    given |= {name: _from_folder(ledger.settings.folder, given[name]) for name in _FILES if name in given}
    if "from_run" in given:
        source, before = _named(given["from_run"])[0].resolve(), (*before, run.resolve())
        if source in before:
            raise ConfigurationError(
                f"`--from-run` must lead to a run that began without it. Received: `{source}`, which leads back to "
                "itself. Name another run, or `--model` and the data themselves."
            )
        given = _given(source, ledger_of(source, "--from-run"), before) | given
    return given | {"model": given.get("model") or given.get("example")}


def _from_folder(folder: str, text: str) -> str:
    """Return the value of an option of a command started in `folder`; relative files become absolute."""
    name, colon, rest = text.partition(":")
    here = Path.cwd().samefile(folder) if Path(folder).is_dir() else True
    return f"{Path(folder, name)}{colon}{rest}" if not here and Path(folder, name).exists() else text


def _trial(run: Path, ledger: Ledger, number: str) -> Trial:
    """Return trial `number` of a run, or its best one if `number` is empty; ConfigurationError if there is none."""
    named = next((trial for trial in ledger.trials if str(trial.number) == number), None)
    trial = named if number else ledger.result
    if trial is None:
        raise ConfigurationError(
            f"The run must have a complete trial, or the trial that is named. Received: `{run}` with "
            f"{counted(len(ledger.trials), 'trial')}, "
            f"{f'without trial {number}' if number else 'none of them complete'}. `nnlo-opt show {run}` lists them."
        )
    return trial
