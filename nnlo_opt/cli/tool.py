"""Table of all commands; their modules are imported on use.

A new command needs a row here and a function, which gets its parser and the words after its name. The function returns
the exit code, or None for success, and raises errors, which `main` prints. Its docstring is the description in the
command's help.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

import nnlo_opt
from nnlo_opt.app.commands.process import HelpRequested
from nnlo_opt.app.reporting.terminal import fitted
from nnlo_opt.core.base.errors import EXIT_OK, EXIT_WRONG_REQUEST, NnloError, ProtocolError

if TYPE_CHECKING:
    from nnlo_opt.app.commands.arguments import Parser
    from nnlo_opt.app.run.options.table import Option


@dataclass(frozen=True, slots=True)
class Command:
    """A command.

    Args:
        help: line in the help of `nnlo-opt`; empty for commands of other programs.
        function: function that runs it, as `part.module.name`; empty for a driver, which all ranks run.
        table: table of options, as `folder.module.NAME`; if empty, the one in the function's module: `OPTIONS` for
            `main`, `SHOW_OPTIONS` for `show`.
        quick: answers the usual requests without the imports of a parser; returns False to leave one to `function`.
    """

    help: str = ""
    function: str = ""
    table: str = ""
    quick: str = ""

    @property
    def options(self) -> "tuple[Option, ...]":
        """Options of the command."""
        module, _, function = self.function.rpartition(".")
        beside = f"{module}." + ("OPTIONS" if function == "main" else f"{function.upper()}_OPTIONS")
        place, _, name = (self.table or beside).rpartition(".")
        return getattr(import_module(f"nnlo_opt.{place}"), name, ())


#: names of the drivers
DRIVERS = ("OptimizationDriver", "TrainingDriver", "MPIDriver", "MPIGDriver")
# A table, laid out by hand.
# fmt: off
#: command -> help, function and options
COMMANDS = {
    "OptimizationDriver": Command(table="app.run.options.table.OPTIMIZATION_OPTIONS"),
    "TrainingDriver": Command(table="app.run.options.table.TRAINING_OPTIONS"),
    "MPIGDriver": Command(table="app.commands.driver_parsers.GAN_OPTIONS"),
    "nnlo-opt show": Command("print the trials of a run, or one of them, from its journal", "app.commands.watch.show"),
    "nnlo-opt report": Command(
        "rewrite results.csv, summary.json and the page report.html of a run from its journal",
        "tools.export.command.report"),
    "nnlo-opt best-model": Command("save the best model of a run, even if the run was interrupted",
        "app.commands.earlier_runs.best_model"),
    "nnlo-opt space": Command("print the parameters of a search space, and some of its points",
        "app.commands.space.main"),
    "nnlo-opt repair": Command(
        "salvage a damaged journal, so that the run can be resumed; the damaged one is kept next to it as "
        "journal.jsonl.damaged-1, -2, …",
        "app.commands.clean.repair"),
    "nnlo-opt export": Command("write a run for Optuna, TensorBoard, MLflow or W&B, or as tables",
        "tools.export.command.export"),
    "nnlo-opt watch": Command("follow a run: progress, best trial, running trials, failures",
        "app.commands.watch.watch"),
    "nnlo-opt status": Command("print the state of a run in a few lines, or as JSON", "app.commands.watch.status",
        quick="app.reporting.status_lines.has_printed_status"),
    "nnlo-opt enqueue": Command("give a search a point to try", "app.commands.steer.enqueue"),
    "nnlo-opt stop": Command("end a search, or one of its trials, from any machine", "app.commands.steer.stop"),
    "nnlo-opt best": Command("print the best trial as JSON, YAML, or as a command", "app.commands.best.best"),
    "nnlo-opt ensemble": Command("combine several trained trials into one model", "app.commands.best.ensemble"),
    "nnlo-opt list": Command("print the runs of a folder", "app.commands.runs.listing"),
    "nnlo-opt compare": Command("print the differences between runs", "app.commands.runs.compare"),
    "nnlo-opt clean": Command("remove files that can be recreated", "app.commands.clean.clean"),
    "nnlo-opt simulate": Command("run a search on virtual blocks, up to 10,000 of them", "tools.simulate.command.main"),
    "nnlo-opt launch": Command("run a driver under mpirun and restart it after a crash",
        "tools.launcher.launch_command.main"),
    "nnlo-opt plan": Command("print roles, memory and batch script of a job, without starting it",
        "tools.launcher.plan_command.main"),
    "nnlo-opt doctor": Command("test MPI, ranks, frameworks, GPUs and the folder of runs",
        "tools.doctor.command.main"),
    "nnlo-opt examples": Command("write examples and search spaces, or the programs of NNLO and mpi_learn",
        "cli.examples.main"),
    "nnlo-opt run-legacy": Command("run a script or model of NNLO or mpi_learn unchanged", "cli.examples.run_legacy"),
    "nnlo-opt completion": Command("print a script that completes all commands in bash, zsh or fish",
        "cli.completion.main"),
    "GetData": Command("", "app.commands.getdata.main"),
    "GetData from-arrays": Command("", "app.commands.getdata.from_arrays"),
    "BuildModel": Command("", "ancestors.buildmodel.main"),
    "horovodrun": Command("", "ancestors.horovodrun.main"),
}
# fmt: on
_PREFIX = "nnlo-opt "
#: words after `nnlo-opt`
SUBCOMMANDS = tuple(name.removeprefix(_PREFIX) for name in COMMANDS if name.startswith(_PREFIX))


def main(argv: Sequence[str], program: str = "nnlo-opt") -> int:
    """Run a command of one process; return the exit code."""
    try:
        if program in COMMANDS:
            return _run(program, argv)
        name = argv[0] if argv and argv[0] in SUBCOMMANDS else _parser().given(argv)["command"]
        return _run(_PREFIX + name, argv[1:])
    except HelpRequested as request:
        print(request, end="")
        return request.code
    except ProtocolError:
        raise
    except NnloError as error:
        said = str(error) if program not in COMMANDS else f"{program}: {error}"
        print(fitted(said, sys.stderr), file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if error.filename is None:  # standard output
            raise
        what = f"`{error.filename}` ({error.strerror or error})"
        print(f"A path that a command uses must be readable and writable. Received: {what}.", file=sys.stderr)
        return EXIT_WRONG_REQUEST


def _run(name: str, argv: Sequence[str]) -> int:
    command = COMMANDS[name]
    if command.quick and _named(command.quick)(argv):
        return EXIT_OK
    from nnlo_opt.app.commands.arguments import Parser

    function = _named(command.function)
    return int(function(Parser(command.options, prog=name, description=function.__doc__), argv) or EXIT_OK)


def _named(path: str) -> Any:
    """Return what a row of the table names, as `part.module.name`."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(f"nnlo_opt.{module}"), name)


def _parser() -> "Parser":
    """Return the parser of `nnlo-opt`, which knows only the names of its commands."""
    from nnlo_opt.app.commands.arguments import Parser

    parser = Parser(
        prog="nnlo-opt",
        description="Launch, plan, watch, read, export and repair runs; print search spaces; simulate searches.",
        epilog="Each command has its own --help, which describes its options.",
    )
    version = f"nnlo_opt {nnlo_opt.__version__}\n"
    parser.add_answer("--version", help="show program's version number and exit", answer=lambda: version)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in SUBCOMMANDS:
        commands.add_parser(name, help=COMMANDS[_PREFIX + name].help)
    return parser
