"""`nnlo-opt simulate`: simulates a search to show how many blocks it keeps busy, and how good its trials are."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

from nnlo_opt.app.commands.arguments import Parser, checked_run, run_named
from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.app.reporting.terminal import line_width
from nnlo_opt.app.reporting.words import counted, duration_text
from nnlo_opt.app.run.options.kinds import FLAG, PATH, SHARE, TEXT, finite, many, whole
from nnlo_opt.app.run.options.pruning import check_rungs, pruning_plan
from nnlo_opt.app.run.options.table import BY_NAME, SEED, TARGET, Option
from nnlo_opt.core.base.errors import EXIT_FAILURE, EXIT_OK, ConfigurationError
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.coordinator.instructions import SearchPlan
from nnlo_opt.core.search.design import design_size
from nnlo_opt.core.search.pruning import FREEZE_THAW, PruningPlan
from nnlo_opt.core.trials.journal import Journal
from nnlo_opt.core.trials.objectives import Comparison
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME
from nnlo_opt.engine.runtime.environment import fit_on_one_thread
from nnlo_opt.engine.search.custom import custom_pruner, is_custom
from nnlo_opt.engine.search.process import InlineSearch
from nnlo_opt.engine.search.registry import AUTO, is_grid, options_of
from nnlo_opt.tools.simulate.clock import parse_cost
from nnlo_opt.tools.simulate.loading import load_durations, load_objective
from nnlo_opt.tools.simulate.replay import Replay
from nnlo_opt.tools.simulate.result import SimulationResult
from nnlo_opt.tools.simulate.simulation import Simulation, SimulationPlan
from nnlo_opt.tools.simulate.workload import Workload

#: options of pruners, and options that are taken from a run
_OF_PRUNER = ("eta", "min_epochs", "min_trials", "max_epochs")
_OF_RUN = ("objective", "search_space", "duration", "startup", "epochs", "failures", "n_fold", "direction", "optimum")
#: options of `nnlo-opt simulate`
# fmt: off
OPTIONS = (
    Option("blocks", "N", many(whole(), "extend"), default=(10,), shown="10", example="10",
        help="number of blocks; several for one simulation each"),
    Option("trials", "TRIALS", whole(), default=100, shown="100, or all of --run", example="500",
        help="number of trials of a search, failed ones included"),
    replace(BY_NAME["hyper_opt"], default="random", group=""),
    Option("objective", "FUNCTION", TEXT, default="hartmann6", example="branin",
        help="function to minimise: hartmann6, branin, or FILE.py:FUNCTION or MODULE:FUNCTION, a function of a "
             "point that returns a number, or a list with one number per epoch"),
    Option("run", "RUN", TEXT, example="checkpoints/CP",
        help="instead of a function, replay the complete trials of this run in order, with their learning curves "
             "and times, to see what another pruner or more blocks would have done"),
    Option("search_space", "MODULE", TEXT, shown="the function's own `parameter_range`", example="space.py",
        help="search space of the function"),
    Option("optimum", "FIGURE", finite(), shown="the function's own `optimum`", example="-3.32",
        help="best possible figure of merit of the function, for the regret"),
    Option("duration", "SECONDS", TEXT, default="lognormal:60:0.5", example="constant:60",
        help="training time of a fold: constant:SECONDS, lognormal:MEDIAN:SIGMA, table:FILE.csv (column `seconds` "
             "or `train_s`, such as results.csv), or a function of a point as for --objective"),
    Option("startup", "SECONDS", finite(0, "seconds"), default=0.0, example="5",
        help="time from the assignment to the start of a training"),
    Option("epochs", "EPOCHS", whole(), default=1, example="10",
        help="number of reports of a trial whose objective returns a single number"),
    Option("failures", "SHARE", SHARE, default=0.0, example="0.05", help="probability that an attempt at a fold fails"),
    replace(BY_NAME["n_fold"], help="folds of a trial", group=""),
    replace(BY_NAME["block_size"], default=1, help="ranks of a block; folds share a block of 2 * FOLDS", group=""),
    replace(BY_NAME["direction"], default="min", help="minimise (min) or maximise (max) the figure of merit", group=""),
    *(replace(BY_NAME[name], group="") for name in ("pruner", *(f"pruner_{part}" for part in _OF_PRUNER))),
    replace(TARGET, help="stop when a figure of merit is better than this", group=""),
    Option("suggestion_cost", "COST", TEXT, default="free", example="0.1",
        help="time per suggestion: free, measured (on this machine), or seconds"),
    Option("coordinator_cost", "COST", TEXT, default="free", example="measured",
        help="time per message: free, measured (on this machine), or seconds"),
    replace(SEED, help="random seed"),
    Option("fsync", "", FLAG, default=False,
        help="sync the journal to disk like a run; without it nothing is synced"),
    Option("out", "DIRECTORY", PATH, example="simulated",
        help="keep the journal in this directory, for `nnlo-opt show`"),
    Option("json", "", FLAG, default=False, help="print one JSON object per number of blocks"),
)
# fmt: on

#: most most lines of the table of improvements
_MOST_IMPROVEMENTS = 15
#: header, width and text of each column of the table by number of blocks
_COLUMNS: tuple[tuple[str, int, Callable[[SimulationResult], str]], ...] = (
    ("blocks", 8, lambda result: str(result.n_blocks)),
    ("time", 10, lambda result: duration_text(result.makespan_s)),
    ("training", 10, lambda result: _percent(result.team_utilization)),
    ("busy", 8, lambda result: _percent(result.utilization)),
    ("searching", 10, lambda result: _percent(result.utilization_searching)),
    ("gap ms", 9, lambda result: f"{1e3 * result.dispatch_gap.median_s:.1f}"),
    ("99 %", 9, lambda result: f"{1e3 * result.dispatch_gap.percentile_99_s:.1f}"),
    ("suggest ms", 11, lambda result: f"{1e3 * result.suggestion.median_s:.1f}"),
    ("complete", 9, lambda result: str(result.n_trials.get("complete", 0))),
    ("failed", 8, lambda result: str(result.n_trials.get("failed", 0))),
    ("best", 12, lambda result: f"{result.best[-1].figure_of_merit:.6g}" if result.best else "-"),
    ("regret", 10, lambda result: _regret(result.regret)),
    ("took s", 8, lambda result: f"{result.wall_s:.1f}"),
)
#: columns omitted on a narrow terminal
_SPARE = ("99 %", "took s", "searching", "busy", "suggest ms")

_LEGEND = """
time: simulated, h:mm:ss. training: share of it for which blocks had work. busy: the same by the coordinator's clock,
as in summary.json; searching: while trials were left to begin. gap: idle time of a block between two assignments,
median and 99 %. suggest: median time of a suggestion. took: real seconds on this machine."""


def main(parser: Parser, argv: Sequence[str]) -> int:
    """Simulate a search: the real coordinator, journal and search algorithm run on virtual blocks in virtual time.
    Prints how busy the blocks are and what the search finds. Nothing is trained.
    """
    fit_on_one_thread()
    arguments, given = parser.values(argv), parser.given(argv)
    if arguments.run and (beside := [name for name in _OF_RUN if name in given]):
        raise ConfigurationError(
            f"`--run` has trials with recorded figures and times. Received: `--{beside[0].replace('_', '-')}` as "
            "well; leave it out."
        )
    try:
        workload = _replay(arguments, given) if arguments.run else _workload(arguments)
        _choose(arguments, workload, given)
        return _run(arguments, workload)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 128 + signal.SIGINT


def _run(arguments: argparse.Namespace, workload: Workload) -> int:
    """Simulate a search for every number of blocks; return the exit code."""
    objective = workload.objective
    plans = [_plan(arguments, workload, n_blocks) for n_blocks in arguments.blocks]
    searches, remarks = zip(*(_started(arguments, workload, plan.search.pruning) for plan in plans), strict=True)
    if remarks[0]:
        print(remarks[0], file=sys.stderr)
    paths = [_place(arguments, n_blocks) for n_blocks in arguments.blocks]
    if not arguments.json:
        how = f"{arguments.hyper_opt} search, {arguments.duration} s, seed {arguments.seed}"
        pruning = plans[0].search.pruning
        pruner = f", pruner {pruning.name}" if pruning else ""
        how = "in their order" if arguments.run else how
        print(f"{counted(arguments.trials, 'trial')} of {objective.name}, {how}{pruner}; simulated.\n")
        print("".join(f"{head:>{width}}" for head, width, _ in _shown()))
    code, results = EXIT_OK, []
    for plan, search, path in zip(plans, searches, paths, strict=True):
        result, reason = _simulate(plan, search, path, syncs=arguments.fsync)
        results.append(result)
        row = "".join(f"{text(result):>{width}}" for _, width, text in _shown())
        print(json.dumps(_settings(arguments) | result.to_json()) if arguments.json else row, flush=True)
        if not result.best:
            print(f"No trial succeeded. The first reason: {reason or 'none'}", file=sys.stderr)
            code = EXIT_FAILURE
    if not arguments.json:
        _explain(arguments, results, paths)
    return code


def _choose(arguments: argparse.Namespace, workload: Workload, given: Collection[str]) -> None:
    """Resolve `auto` in `arguments`; virtual blocks can pause all trials."""
    if arguments.hyper_opt != AUTO:
        return
    plan, epochs = _pruning(arguments, workload), 0
    if plan is not None and plan.name == FREEZE_THAW:
        epochs = plan.max_epochs or 0
    arguments.hyper_opt = FREEZE_THAW if epochs > 1 and "pruner" not in given else "bayesian"
    if not arguments.json:
        why = "a pruner is given" if "pruner" in given else f"trials have {counted(epochs, 'epoch')}"
        print(f"`--hyper-opt auto` is {arguments.hyper_opt}, because {why}.")


def _workload(arguments: argparse.Namespace) -> Workload:
    objective = load_objective(arguments.objective, arguments.search_space)
    if arguments.optimum is not None:
        objective = objective.replaced(optimum=arguments.optimum)
    return Workload(
        objective=objective,
        durations=load_durations(arguments.duration),
        failures=arguments.failures,
        n_epochs=arguments.epochs,
        startup_s=arguments.startup,
        seed=arguments.seed,
    )


def _replay(arguments: argparse.Namespace, given: Collection[str]) -> Replay:
    """Return the trials of a run; sets their number, the folds and the direction in `arguments`."""
    run = checked_run(run_named(arguments.run))
    ledger = read_ledger(run)
    workload = Replay.of(run, ledger)
    if ledger.constraints:
        bounds = " and ".join(map(str, ledger.constraints))
        print(f"Bounds are not simulated: trials that break {bounds} count like the others.", file=sys.stderr)
    n_trials = len(workload.trials)
    if "trials" not in given:
        arguments.trials = n_trials
    elif arguments.trials > n_trials:
        raise ConfigurationError(
            f"`--trials` must be at most {n_trials}, the complete trials of `--run`. Received: {arguments.trials}."
        )
    arguments.n_fold, arguments.direction = ledger.identity.n_fold, ledger.direction
    return workload


def _pruning(arguments: argparse.Namespace, workload: Workload) -> PruningPlan | None:
    plan = pruning_plan(SimpleNamespace(**vars(arguments)), Comparison())
    if plan is None or plan.is_own:
        return plan
    n_epochs = arguments.epochs
    with suppress(Exception):  # a user's function; it will fail the trial
        n_epochs = workload.n_epochs_most
    plan = replace(plan, max_epochs=plan.max_epochs or n_epochs)
    check_rungs(plan)
    return plan


def _plan(arguments: argparse.Namespace, workload: Workload, n_blocks: int) -> SimulationPlan:
    return SimulationPlan(
        search=SearchPlan(
            num_iterations=arguments.trials,
            n_fold=arguments.n_fold,
            direction=arguments.direction,
            target_objective=arguments.target_objective,
            pruning=_pruning(arguments, workload),
        ),
        pruner=custom_pruner(arguments.pruner) if is_custom(arguments.pruner) else None,
        topology=Topology.plan(1 + n_blocks * arguments.block_size, arguments.block_size, arguments.n_fold),
        workload=workload,
        suggestion_cost=parse_cost(arguments.suggestion_cost, "`--suggestion-cost`"),
        coordinator_cost=parse_cost(arguments.coordinator_cost, "`--coordinator-cost`"),
    )


def _started(
    arguments: argparse.Namespace, workload: Workload, pruning: PruningPlan | None
) -> tuple[InlineSearch, str]:
    """Return a started search, and a remark for the user or ""."""
    search, objective = InlineSearch(), workload.objective
    options: dict[str, Any] = {"likely_first": not (arguments.run or is_grid(arguments.hyper_opt))}
    if pruning is not None:
        options["max_epochs"] = pruning.max_epochs
    if "n_initial_points" in options_of(arguments.hyper_opt):
        options["n_initial_points"] = design_size(objective.space, arguments.trials)
    remark = search.start(arguments.hyper_opt, objective.space, arguments.seed, options)
    for point in workload.points if isinstance(workload, Replay) else ():
        search.enqueue(point)
    return search, remark


def _simulate(
    plan: SimulationPlan, search: InlineSearch, place: Path | None, *, syncs: bool
) -> tuple[SimulationResult, str]:
    """Return the result, and the reason of the first failed trial."""
    folder: AbstractContextManager[str]
    folder = nullcontext(str(place)) if place else TemporaryDirectory(prefix="nnlo-opt-simulate-")
    with folder as path, closing(Journal(Path(path) / JOURNAL_NAME, syncs=syncs)) as journal:
        simulation = Simulation(plan, search, journal)
        return simulation.run(), next((t.reason for t in simulation.ledger.trials if t.reason), "")


def _place(arguments: argparse.Namespace, n_blocks: int) -> Path | None:
    """Return the directory for the journal; None if it is not kept. ConfigurationError if it already has a journal."""
    if arguments.out is None:
        return None
    path = Path(arguments.out)
    if len(arguments.blocks) > 1:
        path /= f"blocks-{n_blocks}"
    if os.path.exists(path / JOURNAL_NAME):
        raise ConfigurationError(f"`--out` must be a directory without a journal. Received: `{path}`, which has one.")
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"`--out` must be a writable directory. Received: `{path}` ({error}).") from None
    return path


# ---------------------------------------------------------------- what is printed


def _shown() -> list[tuple[str, int, Callable[[SimulationResult], str]]]:
    """Return the columns; on a narrow terminal only those that fit in 80 characters."""
    is_narrow = sum(width for _, width, _ in _COLUMNS) > line_width()
    return [column for column in _COLUMNS if not (is_narrow and column[0] in _SPARE)]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _regret(regret: float | None) -> str:
    return "-" if regret is None else f"{regret:.4f}"


def _explain(arguments: argparse.Namespace, results: list[SimulationResult], paths: list[Path | None]) -> None:
    if len(results) == 1 and results[0].best:
        best = results[0].best
        print(f"\n{'time':>10}{'ended':>9}{'trial':>9}{'best':>12}{'regret':>10}")
        for step in best[-_MOST_IMPROVEMENTS:]:
            head = f"{duration_text(step.time_s):>10}{step.n_ended:>9}{step.trial:>9}"
            print(f"{head}{step.figure_of_merit:>12.6g}{_regret(step.regret):>10}")
    print(_LEGEND)
    print(_costs(arguments.suggestion_cost, arguments.coordinator_cost))
    for path in filter(None, paths):
        print(f"Journal: `{path}`; `nnlo-opt show {path}`.")


def _costs(suggestion: str, coordinator: str) -> str:
    if suggestion == coordinator == "free":
        return "Suggestions and coordinator cost no time."
    words = {"free": "no time", "measured": "the time measured here"}
    return (
        f"A suggestion costs {words.get(suggestion, f'{suggestion} s')}, "
        f"a step of the coordinator {words.get(coordinator, f'{coordinator} s')}."
    )


def _settings(arguments: argparse.Namespace) -> dict[str, Any]:
    names = ("trials", "hyper_opt", "objective", "duration", "failures", "epochs", "seed", "suggestion_cost")
    return {name: getattr(arguments, name) for name in (*names, "coordinator_cost")}
