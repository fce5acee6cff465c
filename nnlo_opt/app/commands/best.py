"""The commands `nnlo-opt best` and `nnlo-opt ensemble`: results of a search."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from nnlo_opt.app.analysis.frames import last_metrics
from nnlo_opt.app.commands.arguments import Parser
from nnlo_opt.app.commands.driver_parsers import DRIVERS
from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.app.reporting.words import counted, figure_text
from nnlo_opt.app.run.options.kinds import PATH, one_of, whole
from nnlo_opt.app.run.options.table import NAMED_MODEL, SEED, Option
from nnlo_opt.core.base.errors import ConfigurationError, printable
from nnlo_opt.core.trials.identity import COMMAND
from nnlo_opt.core.trials.kept_weights import FILES_NAME, best_trials, weights_of
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import Trial
from nnlo_opt.engine.objective.template import CHECKPOINT, RANKS, SAVE, Template

# fmt: off
#: options of `nnlo-opt best`
BEST_OPTIONS = (
    Option("as", "FORM", one_of("json", "yaml", "command"), default="json", example="command",
        help="json, yaml, or the command line that trains the trial again; for a Pareto set, one line per trial"),
)
#: options of `nnlo-opt ensemble`
ENSEMBLE_OPTIONS = (
    Option("size", "N", whole(), default=10, example="25",
        help="maximum number of selections; a trial may be selected several times"),
    Option("out", "FILE", PATH, shown="ensemble in the run directory", example="digits",
        help="file of the model, ending in .keras, or .pt for torch"),
    NAMED_MODEL,
    replace(SEED, help="seed for dividing the validation samples into two halves"),
)
# fmt: on


def best(parser: Parser, argv: Sequence[str]) -> None:
    """Print the best trial of a run, or the Pareto set for several objectives: point, figure of merit, metrics, epochs,
    files of its weights. If figures of merit are noisy, `best_expected` is the trial with the best expected one.
    """
    arguments = parser.values_of_run(argv)
    run, form, ledger = arguments.run, vars(arguments)["as"], read_ledger(arguments.run)
    trials = best_trials(ledger)
    if not trials:
        raise ConfigurationError(
            f"The run must have a complete trial. Received: `{run}` with {counted(len(ledger.trials), 'trial')}, "
            f"none of them complete{' and feasible' * bool(ledger.constraints)}. `nnlo-opt show {run}` lists them."
        )
    if form == "command":
        print("\n".join(_command(run, ledger, trial) for trial in trials))
    elif form == "json":
        print(json.dumps(_described(run, ledger, trials), indent=2))
    else:
        import yaml

        found = _described(run, ledger, trials)
        text = yaml.safe_dump(found, sort_keys=False, allow_unicode=True)
        print(text if text == printable(text) else yaml.safe_dump(found, sort_keys=False), end="")


def _described(run: Path, ledger: Ledger, trials: Sequence[Trial]) -> dict[str, Any]:
    head: dict[str, Any] = {"run": str(run)}
    if ledger.objectives:
        named = [{"name": objective.name, "direction": objective.direction} for objective in ledger.objectives]
        return {**head, "objectives": named, "pareto": [_trial(run, trial) for trial in trials]}
    saved = sorted(run.glob("best_model.*"))
    head |= {"figure": ledger.identity.figure_of_merit, "direction": ledger.direction}
    found = {**head, **_trial(run, trials[0]), "model": str(saved[0]) if saved else None}
    if (expected := ledger.best_expected) is not None:
        found["best_expected"] = _trial(run, expected)
    return found


def _trial(run: Path, trial: Trial) -> dict[str, Any]:
    return {
        "trial": trial.number,
        "figure_of_merit": trial.figure_of_merit,
        "figure_of_merit_std": trial.figure_of_merit_std,
        **({"objectives": trial.objectives} if trial.objectives else {}),
        "parameters": trial.point,
        "metrics": last_metrics(trial),
        "epochs": max(result.n_epochs for result in trial.folds.values()),
        "n_folds": len(trial.folds),
        "weights": [*map(str, weights_of(run, trial))],
    }


def _command(run: Path, ledger: Ledger, trial: Trial) -> str:
    """Return the command line that retrains a trial, on as many ranks as one of its folds had."""
    if text := ledger.identity.model.parts.get(COMMAND):
        started = ledger.settings.command
        return _script(run, Template(started) if started else Template.of_first_version(text), trial)
    program = (ledger.settings.command_line or ["an unknown program"])[0]
    if program not in DRIVERS or ledger.identity.data is None:
        what = "trials of an objective" if program in DRIVERS else f"a run of {program}"
        raise ConfigurationError(
            f"`--as command` is for models that a driver has trained. Received: {what} in `{run}`; take `--as json`."
        )
    n_ranks = trial.assignments[-1].n_ranks
    words = [*["mpirun", "-np", str(n_ranks)] * (n_ranks > 1), "TrainingDriver"]
    return shlex.join([*words, "--from-run", f"{run}:{trial.number}"])


def _script(run: Path, template: Template, trial: Trial) -> str:
    """Return the command line of a trial of `--command`, on as many ranks as it had."""
    n_ranks, folder = trial.assignments[-1].n_ranks, run / f"trials/{trial.number:04d}/{FILES_NAME}"
    others = {"trial": trial.number, RANKS: n_ranks, "folder": folder, SAVE: folder, CHECKPOINT: ""}
    is_group = n_ranks > 1 and RANKS not in template.names
    torchrun = ["torchrun", "--standalone", f"--nproc-per-node={n_ranks}", "--no-python"] * is_group
    return shlex.join([*torchrun, *template.filled(trial.point, others)])


# ---------------------------------------------------------------- several trials as one model


def ensemble(parser: Parser, argv: Sequence[str]) -> None:
    """Combine trained trials of a run into one model that averages their outputs. Trials are selected on one half of
    the validation samples, and the gain over the best trial is measured on the other half.
    """
    arguments = parser.values_of_run(argv)
    from nnlo_opt.app.commands.earlier_runs import model_of_run
    from nnlo_opt.app.reporting.table import text_table
    from nnlo_opt.app.run.afterwards.ensemble import EnsembleSetup, make_ensemble

    path = Path(arguments.out or arguments.run / "ensemble").absolute()
    if not path.parent.is_dir():
        raise ConfigurationError(f"`--out` must name a file in a folder that exists. Received: `{path}`.")
    ledger, workload = model_of_run(arguments.run, arguments.model)
    setup = EnsembleSetup(
        run=arguments.run,
        ledger=ledger,
        workload=workload,
        size=arguments.size,
        seed=arguments.seed,
        path=path,
    )
    ensemble = make_ensemble(setup)
    figure, direction = str(ledger.identity.figure_of_merit), workload.options.plan.direction
    shown = [f"{count} x trial {n}" if count > 1 else f"trial {n}" for n, count in ensemble.counts.items()]
    print(f"Ensemble of {counted(ensemble.n_trials, 'trial')}: the mean of {', '.join(shown)}.")
    print(figure_text(figure, direction))
    rows = [
        [f"best single, trial {ensemble.single}", *(f"{value:.6g}" for value in ensemble.single_figures)],
        ["ensemble", *(f"{value:.6g}" for value in ensemble.figures)],
    ]
    n_select, n_judge = ensemble.n_samples
    print(f"Of {n_select + n_judge:,} validation samples, {n_select:,} are for selecting and {n_judge:,} for judging.")
    print(f"\n{text_table('', ['model', 'when selecting', 'when judging'], rows, left=True)}\n")
    gain = ensemble.single_figures[1] - ensemble.figures[1]
    print(f"Gain on the samples not used for selecting: {-gain if direction == 'max' else gain:.4g}.")
    print(f"Saved `{ensemble.path}`.")
