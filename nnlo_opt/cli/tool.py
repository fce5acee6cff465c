"""The `nnlo-opt` command: looks at runs, repairs, launches, plans or simulates them, in one process."""

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import nnlo_opt
from nnlo_opt.cli.arguments import Parser, checked_run, run_parser
from nnlo_opt.errors import EXIT_OK, EXIT_WRONG_REQUEST, ConfigurationError, NnloError, ProtocolError
from nnlo_opt.models.builders import builtin_names, model_file
from nnlo_opt.reporting.lines import counted
from nnlo_opt.reporting.page import PAGE_NAME, write_page
from nnlo_opt.reporting.results import read_ledger, write_results
from nnlo_opt.reporting.terminal import fitted, line_width
from nnlo_opt.run.option_kinds import PATH, whole
from nnlo_opt.run.option_table import BY_NAME, NAMED_MODEL, RUNS, SEED, Option
from nnlo_opt.runtime.environment import THREAD_VARIABLES
from nnlo_opt.safe_path import SafePath
from nnlo_opt.training.options import searchable
from nnlo_opt.trials.repair import repair
from nnlo_opt.trials.run_directory import JOURNAL_NAME

# fmt: off
#: options of `nnlo-opt report`
REPORT_OPTIONS = (
    Option("figures", "DIR", PATH, shown="no figures", example="paper", bare="",
        help="also write figures for a paper, as PNG and PDF; without DIR into the folder `figures` of the run"),
)
# fmt: on
#: command that `_look` runs -> its options
#: options of `nnlo-opt space`
SPACE_OPTIONS = (
    Option("samples", "N", whole(0), "points to draw and print", 0, example="5"),
    replace(SEED, help="seed of the points"),
    replace(BY_NAME["fix"], group=""),
)


_PROGRAM = '''#!/usr/bin/env python
"""`{name}` by its name in NNLO and mpi_learn."""

import sys

from nnlo_opt.cli.main import {function}

sys.argv[1:] = {words}
if __name__ == "__main__":
    {function}()
'''
#: words of a script; two may be joined by a comma
_WORDS = '*" ".join(sys.argv[1:]).replace(",", " ").split()'
#: file -> function of `cli.main` that it calls, with the expression of its words
_PROGRAMS = {
    **{name: (function, "sys.argv[1:]") for name, function in (
        ("TrainingDriver.py", "training_driver"),
        ("OptimizationDriver.py", "optimization_driver"),
        ("MPIDriver.py", "mpi_driver"),
        ("MPIGDriver.py", "mpig_driver"),
        ("BuildModel.py", "build_model"),
        ("models/BuildModel.py", "build_model"),
        ("GetData.py", "get_data"),
    )},
    **{
        f"models/get_{name}.py": ("get_data", f'["{name}", "--out", ".", {_WORDS}]')
        for name in ("mnist", "cifar10", "topclass", "3d")
    },
}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit code."""
    try:
        name = argv[0] if argv and argv[0] in _COMMANDS else _parser().parse_args(argv).command
        return _COMMANDS[name][1](argv[1:])
    except ProtocolError:
        raise
    except NnloError as error:
        print(fitted(str(error), sys.stderr), file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if error.filename is None:  # of standard output
            raise
        what = f"`{error.filename}` ({error.strerror or error})"
        print(f"A path that a command uses must be readable and writable. Received: {what}.", file=sys.stderr)
        return EXIT_WRONG_REQUEST


def _parser() -> Parser:
    parser = Parser(
        prog="nnlo-opt",
        description="Launch, plan, watch, read, export and repair runs; print search spaces; simulate searches.",
        epilog="Each command has its own --help, which describes its options.",
    )
    parser.add_argument("--version", action="version", version=f"nnlo_opt {nnlo_opt.__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (text, _) in _COMMANDS.items():
        commands.add_parser(name, help=text)
    return parser


def _fit_on_one_thread() -> None:
    """Prepare for fits, which are small, as the search process does; to be called before SciPy is imported."""
    for name in THREAD_VARIABLES:
        os.environ.setdefault(name, "1")


def _simulate(argv: Sequence[str]) -> int:
    _fit_on_one_thread()
    from nnlo_opt.cli import simulate

    what = (
        "Run a search with the real coordinator, journal and search algorithm on virtual blocks, in virtual time, and "
        "print how many blocks it keeps busy and what it finds. Nothing is trained."
    )
    parser = Parser(simulate.OPTIONS, prog="nnlo-opt simulate", description=what)
    try:
        return simulate.run(parser.values(argv))
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return 128 + signal.SIGINT


def _space(argv: Sequence[str]) -> int:
    """Print a search space. The module is executed in this process."""
    import numpy as np

    from nnlo_opt.reporting.space_table import points_table, size_text, space_table
    from nnlo_opt.space.loading import load_space

    what = "Print the parameters of a search space, and some of its points."
    parser = Parser(SPACE_OPTIONS, prog="nnlo-opt space", description=what)
    parser.add_argument("module", metavar="MODULE", help="Python file or dotted module, as --search-space takes it")
    arguments = parser.values(argv)
    space = load_space(arguments.module, arguments.fix)
    width = line_width(sys.stdout)
    print(space_table(space, f"Search space of {arguments.module}", width))
    print(f"\n{size_text(space)}")
    for name in space.train_names:
        try:
            searchable(name)
        except ConfigurationError as error:
            print(f"\nWarning: the drivers refuse this search space. {error}")
    if arguments.samples:
        rng = np.random.default_rng(arguments.seed)
        points = [space.sample(rng) for _ in range(arguments.samples)]
        print(f"\n{points_table(space, points, 'Some points, drawn by the priors', width)}")
    sys.stdout.flush()
    return EXIT_OK


def _launch(argv: Sequence[str]) -> int:
    from nnlo_opt.cli import launch

    parser = Parser(
        launch.OPTIONS,
        prog="nnlo-opt launch",
        usage="nnlo-opt launch [-n RANKS] [options] -- DRIVER [option ...]",
        description="Run a driver, such as OptimizationDriver, under mpirun, and start it again from its journal "
        "after a crash of ranks, mpirun or nodes, as long as the journal grows. Exit codes: 0 complete, 75 interrupted "
        "(the same command with --opt-restore, or --restore for a training, resumes the run), 2 wrong request, 1 "
        "otherwise.",
    )
    parser.add_rest("-- DRIVER [OPTION ...]", "OptimizationDriver, TrainingDriver or another driver, and its options")
    launch.check_places(argv)
    return launch.run(parser.values(argv), argv)


def _plan(argv: Sequence[str]) -> int:
    from nnlo_opt.cli import plan

    what = (
        "Print which rank of a search plays which role, what memory nodes need, and a batch script. Nothing is started."
    )
    parser = Parser(plan.OPTIONS, prog="nnlo-opt plan", description=what)
    parser.add_rest("-- OPTION ...", "further options of OptimizationDriver, for the script")
    return plan.run(parser.values(argv))


def _doctor(argv: Sequence[str]) -> int:
    from nnlo_opt.cli import doctor

    what = (
        "Check MPI, ranks, cores, threads, frameworks, GPUs and the folder of runs by trying them. The exit code "
        "is 1 if something is broken, else 0."
    )
    parser = Parser(doctor.OPTIONS, prog="nnlo-opt doctor", description=what)
    text = f"run directory, or folder of runs (default: {RUNS})"
    parser.add_argument("folder", nargs="?", type=Path, default=Path(RUNS), metavar="FOLDER", help=text)
    return doctor.run(parser.values(argv))


def _completion(argv: Sequence[str]) -> int:
    from nnlo_opt.cli.completion import SHELLS, script

    parser = Parser(prog="nnlo-opt completion", description="Print a script with which a shell completes all commands.")
    parser.add_argument("shell", choices=SHELLS, help="the shell, for example: nnlo-opt completion bash >> ~/.bashrc")
    print(script(parser.parse_args(argv).shell, tuple(_COMMANDS)), end="")
    return EXIT_OK


def write_examples(folder: Path) -> list[Path]:
    """Write the programs of NNLO and mpi_learn, with their models, by their names into `folder`; return the files.

    Raises:
        ConfigurationError: one of the files exists.
    """
    texts = {name: _PROGRAM.format(name=name, function=of, words=words) for name, (of, words) in _PROGRAMS.items()}
    texts |= {os.path.join("examples", f"example_{name}.py"): model_file(name).read_text() for name in builtin_names()}
    paths = {folder / name: text for name, text in texts.items()}
    if existing := next(filter(os.path.lexists, paths), None):
        raise ConfigurationError(f"No file is overwritten. Received: `{existing}`, which exists; name another folder.")
    for path, text in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = 0o777 if text.startswith("#!") else 0o666
        with open(path, "x", encoding="utf-8", opener=partial(os.open, mode=mode)) as file:
            file.write(text)
    return [*paths]


def _examples(argv: Sequence[str]) -> int:
    parser = Parser(
        prog="nnlo-opt examples",
        description="Write the programs and models of NNLO and mpi_learn under the names in their documents, so that "
        "their command lines run in that folder.",
    )
    parser.add_argument("folder", metavar="DIR", type=Path, help="folder to write to; no file is overwritten")
    folder = parser.parse_args(argv).folder
    print(f"Wrote {', '.join(str(path) for path in write_examples(folder))}.")
    return EXIT_OK


def _run_legacy(argv: Sequence[str]) -> int:
    """Print the help of a command that `main` runs itself."""
    parser = Parser(
        prog="nnlo-opt run-legacy",
        usage="[mpirun -np RANKS] nnlo-opt run-legacy SCRIPT.py [word ...]",
        description="Run a script that was written for NNLO or mpi_learn unchanged, or a driver with such a model "
        "module (nnlo-opt run-legacy TrainingDriver --model their.py). This package provides `nnlo`, `mpi_learn` and "
        "`models` for import, and Keras gets the names of Keras 1 and 2.",
    )
    parser.parse_args([*argv] or ["--help"])
    return EXIT_OK


def _asked(command: str, argv: Sequence[str], options: Sequence[Option] = ()) -> dict[str, Any]:
    """Return the run directory and the texts of the options that a command line has given."""
    text = _COMMANDS[command][0]
    without = "" if command == "repair" else "newest"
    given = run_parser(command, options, f"{text[0].upper()}{text[1:]}.", without).given(argv)
    checked_run(given["run"])
    return given


def _best_model(argv: Sequence[str]) -> int:
    from nnlo_opt.cli.earlier_runs import save_best_model

    asked = _asked("best-model", argv, (NAMED_MODEL,))
    print(fitted(save_best_model(asked["run"], asked.get("model")), sys.stdout))
    return EXIT_OK


def _report(argv: Sequence[str]) -> int:
    asked = _asked("report", argv, REPORT_OPTIONS)
    run = asked["run"]
    _fit_on_one_thread()
    ledger = read_ledger(run)
    write_results(run, ledger)
    write_page(run, ledger)
    print(f"Wrote results.csv, summary.json and {PAGE_NAME} of {counted(len(ledger.trials), 'trial')} to `{run}`.")
    if (folder := asked.get("figures")) is not None:
        from nnlo_opt.reporting.plots import write_figures

        paths = write_figures(ledger, folder := SafePath(Path(folder)) if folder else SafePath(run) / "figures")
        named = ", ".join(path.name[:-4] for path in paths if path.name.endswith(".pdf"))
        text = f"Wrote figures as PNG and PDF to `{folder}`: {named or 'none, as no trial is complete'}."
        print(fitted(text, sys.stdout))
    sys.stdout.flush()
    return EXIT_OK


def _repair(argv: Sequence[str]) -> int:
    run = _asked("repair", argv)["run"]
    repaired = repair(run)
    if repaired is None:
        print(f"`{run / JOURNAL_NAME}` is sound: nothing to repair.")
        return EXIT_OK
    found, damaged = repaired
    kept = counted(len(found.events), "event")
    print(f"Repaired `{run / JOURNAL_NAME}`: {kept} kept. The damaged journal is `{damaged}`.")
    gaps = [f"{first}" if first == last else f"{first}-{last}" for first, last in found.gaps]
    if gaps:
        print(f"Lost lines: {', '.join(gaps)}.")
    if found.n_damaged:
        print(f"Damaged or repeated: {counted(found.n_damaged, 'line')} of the file.")
    if found.n_missing:
        print(f"Missing at the end of the file: {counted(found.n_missing, 'byte')} that had been on the disk.")
    for event in found.dropped:
        print(f"Dropped, because an event it depends on is lost: {event}.")
    if found.lost:
        print(f"Lost trials: {', '.join(map(str, found.lost))}.")
    if found.renumbers:
        changed = [f"{old} is now {new}" for old, new in found.moved.items() if old != new]
        print(f"Trials were renumbered without gaps: {', '.join(changed)}.")
    if found.still_open:
        print(f"Unfinished trials, which `--opt-restore` resumes: {', '.join(map(str, found.still_open))}.")
    return EXIT_OK


def _of(module: str, function: str = "main") -> Callable[[Sequence[str]], int]:
    """Return the command that a function of a module of `cli` runs; only the command imports the module."""
    return lambda argv: int(getattr(import_module(f"nnlo_opt.cli.{module}"), function)(argv))


#: name of each command -> its help, and the function that runs it
_COMMANDS: dict[str, tuple[str, Callable[[Sequence[str]], int]]] = {
    "show": ("print the trials of a run, or one of them, from its journal", _of("watch", "show")),
    "report": ("write results.csv, summary.json and the page report.html of a run anew, from its journal", _report),
    "best-model": ("save the best model of a run, even if the run was interrupted", _best_model),
    "space": ("print the parameters of a search space, and some of its points", _space),
    "repair": (
        "keep the sound part of a damaged journal, so that the run can be resumed; the damaged journal is kept next to "
        "it as journal.jsonl.damaged-1, -2, …",
        _repair,
    ),
    "export": ("write a run for Optuna, TensorBoard, MLflow or W&B, or as tables", _of("export")),
    "watch": ("show a run while it runs: progress, best trial, running trials, failures", _of("watch", "watch")),
    "status": ("print the state of a run in a few lines, or as JSON", _of("watch", "status")),
    "enqueue": ("give a search a point to try", _of("steer", "enqueue")),
    "stop": ("end a search, or one of its trials, from any machine", _of("steer", "stop")),
    "best": ("print the best trial as JSON, YAML, or as a command", _of("best")),
    "ensemble": ("combine several trained trials into one model", _of("ensemble")),
    "list": ("print the runs of a folder", _of("listing")),
    "compare": ("print the differences between runs", _of("compare")),
    "clean": ("remove files that can be made again", _of("clean")),
    "simulate": ("run a search on virtual blocks, up to 10,000 of them", _simulate),
    "launch": ("run a driver under mpirun and start it again after a crash", _launch),
    "plan": ("print roles, memory and batch script of a job, without starting it", _plan),
    "doctor": ("check MPI, ranks, frameworks, GPUs and the folder of runs by trying them", _doctor),
    "examples": ("write the programs and models of NNLO and mpi_learn under their former names", _examples),
    "run-legacy": ("run a script or model of NNLO or mpi_learn unchanged", _run_legacy),
    "completion": ("print a script with which bash, zsh or fish completes all commands", _completion),
}
