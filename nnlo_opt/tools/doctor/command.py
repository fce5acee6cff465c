"""`nnlo-opt doctor`: checks whether runs will work on this machine, in this environment and folder."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from rich.table import Table
from rich.text import Text

from nnlo_opt.app.commands.arguments import Parser
from nnlo_opt.app.reporting.watch import Screen
from nnlo_opt.app.run.options.kinds import FLAG, duration
from nnlo_opt.app.run.options.table import Option
from nnlo_opt.core.base.errors import EXIT_FAILURE, EXIT_OK, EXIT_WRONG_REQUEST, ConfigurationError
from nnlo_opt.core.trials.run_directory import RUNS
from nnlo_opt.engine.runtime.launched import is_rank, split_world
from nnlo_opt.tools.doctor.examination import FRAMEWORKS, Examination
from nnlo_opt.tools.doctor.judgement import Finding, broken
from nnlo_opt.tools.launcher import launch_command as launch

_OF_LAUNCH = {option.name: option for option in launch.OPTIONS}
# fmt: off
#: options of `nnlo-opt doctor`
OPTIONS = (
    replace(_OF_LAUNCH["n_ranks"], shown="as in the batch system, else 2", help="number of ranks to start briefly"),
    _OF_LAUNCH["mpirun"],
    Option("timeout", "TIME", duration(1), default=60.0, example="5m", help="time limit of each check"),
    Option("json", "", FLAG, default=False, help="print the findings as one JSON object"),
)
# fmt: on
#: state -> symbol and colour on a terminal
_LOOKS = {"fine": ("✔", "green"), "remark": ("!", "yellow"), "broken": ("✘", "red")}


def checks(of: Examination) -> Iterator[tuple[str, str, Callable[[], Iterator[Finding]]]]:
    """Yield name, activity and function of each check, in order."""
    yield "MPI", "asking mpirun and the MPI library", of.mpi
    yield "ranks", "starting ranks", of.ranks
    yield "deaths", "killing one of two ranks", of.deaths
    yield "cores", "counting cores", of.cores
    yield "threads", "reading variables", of.threads
    yield "folder", f"writing to {of.folder}", of.disk
    for name in FRAMEWORKS:
        yield name, f"importing {name}", partial(of.framework, name)
    yield "GPUs", "looking for GPUs", of.gpus
    yield "leftovers", "looking for folders of killed mpiruns", of.leftovers


def main(parser: Parser, argv: Sequence[str]) -> int:
    """Test MPI, ranks, cores, threads, frameworks, GPUs and the folder of runs. The exit code is 1 if something is
    broken, else 0.
    """
    text = f"run directory, or folder of runs (default: {RUNS})"
    parser.add_argument("folder", nargs="?", type=Path, default=Path(RUNS), metavar="FOLDER", help=text)
    arguments = parser.values(argv)
    starter = shlex.split(arguments.mpirun)
    launch = split_world(1, pid=os.getpid())
    if launch is not None and not launch.speaks:
        return EXIT_WRONG_REQUEST
    if is_rank() or launch is not None or not starter:
        raise ConfigurationError(
            "`nnlo-opt doctor` must be started once, because it starts ranks itself by `--mpirun`. Received: "
            f"{'a rank of mpirun or srun' if starter else 'an empty `--mpirun`'}. Call it as one process."
        )
    if arguments.folder.is_file():
        raise ConfigurationError(
            f"`nnlo-opt doctor` checks a folder of runs. Received: `{arguments.folder}`, a file; name a folder, which "
            "need not exist."
        )
    # A run directory that does not exist yet will be created in the folder above it.
    folder = next(path for path in (arguments.folder, *arguments.folder.absolute().parents) if path.is_dir())
    examination = Examination(starter=starter, n_ranks=arguments.n_ranks, folder=folder, timeout_s=arguments.timeout)
    said = []
    for name, activity, check in checks(examination):
        with Screen(sys.stderr).status(Text(f"{activity} ...")):
            try:
                findings = [*check()]
            except Exception as error:  # the remaining checks may still help
                findings = [broken(f"The check itself has failed: {error!r}", "Report this.")]
        said += [{"check": name, **asdict(finding)} for finding in findings]
        for finding in findings if not arguments.json else ():
            _print(name, finding)
    n_broken = sum(finding["state"] == "broken" for finding in said)
    if arguments.json:
        print(json.dumps({"n_broken": n_broken, "findings": said}, indent=2))
    return EXIT_FAILURE if n_broken else EXIT_OK


def _print(name: str, finding: Finding) -> None:
    """Print a finding: with a coloured symbol on a terminal, else on one line with its state as a word."""
    console = Screen(sys.stdout)
    if not console.is_terminal:
        print(f"{finding.state}: {name}: {finding.text} {finding.remedy}".rstrip(), flush=True)
        return
    symbol, colour = _LOOKS[finding.state]
    table = Table.grid(padding=(0, 1))
    table.add_column(style=colour)
    table.add_column(width=10)
    table.add_row(finding.state if console.options.ascii_only else symbol, name, Text(finding.text))
    if finding.remedy:
        table.add_row("", "", Text(finding.remedy, colour))
    console.print(table)
