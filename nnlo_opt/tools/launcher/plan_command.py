"""`nnlo-opt plan`: prints roles, memory and batch script of a job before it is started."""

import argparse
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nnlo_opt.app.commands.arguments import Parser
from nnlo_opt.app.run.options.checks import check_teams
from nnlo_opt.app.run.options.kinds import PATH, Kind, WrongValueError, duration, many, one_of, whole
from nnlo_opt.app.run.options.table import BY_NAME, Option
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.files import atomic_write, regular
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.training.options import MODES
from nnlo_opt.engine.search.custom import rules_with
from nnlo_opt.tools.launcher.batch_script import LEAST_S, NOTICE_S, SCHEDULERS, SCRIPT_NAME, BatchJob, activation
from nnlo_opt.tools.launcher.launch_command import OPTIONS as LAUNCH_OPTIONS
from nnlo_opt.tools.launcher.planning import JobPlan, Memory

#: value of `--memory` for the memory computed by the plan
_PLANNED = "planned"
#: largest template in bytes
_MOST_BYTES = 1_000_000


def _named(value: Any) -> str:
    # These words are inserted into directives and shell lines unquoted.
    if not isinstance(value, str) or not re.fullmatch(r"[\w.,+@:/=%][\w.,+@:/=%-]*", value):
        raise WrongValueError(f"must be {_NAME.rule}. Received: {value!r}.")
    return value


_NAME = Kind(rule="a name of letters, digits and . , + - @ : / = %", type=str, convert=_named)
_MEMORY = Kind(
    rule=f"a whole number of MB, at least 1, or {_PLANNED}",
    type=int | str,
    convert=lambda value: value if value == _PLANNED else whole(1).convert(value),
)

# fmt: off
_KNOWN = Memory()
#: options of `nnlo-opt plan`
OPTIONS = (
    Option("n_ranks", "RANKS", whole(), short="-n", also="-np", example="129", help="number of ranks of the job; "
             "required"),
    *(replace(BY_NAME[name], group="") for name in ("block_size", "n_fold", "n_masters", "n_processes")),
    replace(BY_NAME["mode"], kind=one_of(*MODES), group=""),
    Option("node_cores", "CORES", whole(), default=64, example="128", help="cores per node"),
    Option("walltime", "TIME", duration(LEAST_S), default=14400.0, shown="4h", example="90m",
        help="time limit of one allocation, in seconds or as 90m, 2h or 1:30:00"),
    Option("scheduler", "NAME", one_of(*SCHEDULERS), shown="none", example=SCHEDULERS[0],
        help=f"also print a batch script for {', '.join(SCHEDULERS[:-1])} or {SCHEDULERS[-1]}"),
    Option("cores_per_rank", "CORES", whole(), default=1, example="8", help="cores per rank"),
    Option("node_gpus", "GPUS", whole(0), default=0, example="4", help="GPUs to request per node"),
    Option("memory", "MB", _MEMORY, shown="the site's", example="64000", bare=_PLANNED,
        help="memory to request per node; without a number, that of the plan"),
    Option("account", "NAME", _NAME, shown="your default at the site", example="physics",
        help="account or project to charge"),
    Option("partition", "NAME", _NAME, also="--queue", shown="the site's", example="gpu", help="partition or queue"),
    Option("modules", "NAME", many(_NAME, "extend"), example="python/3.11 openmpi/4.1",
        help="environment modules to load in the script"),
    Option("environment", "FOLDER", PATH, shown="the one that submits the job", example="~/nnlo",
        help="Python environment to activate in the script"),
    replace(next(option for option in LAUNCH_OPTIONS if option.name == "mpirun"),
        help='command that starts the ranks in the script, such as "srun --mpi=pmix"'),
    Option("template", "FILE", PATH, example="site.sh",
        help="template of the batch script, with placeholders such as {{run}}"),
    Option("write", "FILE", PATH, shown="print it", example="job.sh", help="file for the batch script"),
    *(
        Option(f"{role}_mb", "MB", whole(0, "MB"), default=known_mb, example="1000",
            help=f"memory of a {role}, without samples and weights")
        for role, known_mb in asdict(_KNOWN).items()
    ),
)
# fmt: on
_SCRIPT_NAMES = {"node_gpus", "memory", "account", "partition", "modules", "environment", "mpirun", "write"}
#: options that only concern the batch script
_OF_SCRIPT = [option for option in OPTIONS if option.name in _SCRIPT_NAMES]


def main(parser: Parser, argv: Sequence[str]) -> None:
    """Print the role of each rank of a search, the memory of each node, and a batch script. Nothing is started."""
    parser.add_rest("-- OPTION ...", "further options of OptimizationDriver, for the script")
    arguments = parser.values(argv)
    if arguments.n_ranks is None:
        raise ConfigurationError("`-n` must say how many ranks the job has. Received: nothing; give `-n RANKS`.")
    if arguments.n_ranks > 1 and arguments.block_size > arguments.n_ranks - 1:
        raise ConfigurationError(
            f"`--block-size` must leave a rank for the coordinator. Received: {arguments.block_size} of "
            f"{arguments.n_ranks} ranks; take at least {arguments.block_size + 1} ranks, or smaller blocks."
        )
    n_masters, n_processes = arguments.n_masters, arguments.n_processes
    rule = rules_with(arguments.mode)[arguments.mode]
    topology = Topology.plan(
        arguments.n_ranks,
        arguments.block_size,
        arguments.n_fold,
        n_masters=n_masters,
        ranks_per_worker=n_processes,
        every_rank_trains=rule.averages_every_batch,
    )
    rule.check_groups(n_masters, n_processes)
    check_teams(topology, n_masters, n_processes)
    if arguments.cores_per_rank > arguments.node_cores:
        raise ConfigurationError(
            f"`--cores-per-rank` must be at most `--node-cores`. Received: {arguments.cores_per_rank} of "
            f"{arguments.node_cores} cores; ask for fewer, or give the cores of your nodes."
        )
    plan = JobPlan(
        topology=topology,
        ranks_per_node=arguments.node_cores // arguments.cores_per_rank,
        memory=Memory(**{role: getattr(arguments, f"{role}_mb") for role in asdict(_KNOWN)}),
    )
    script = _script(arguments, plan)
    print("\n".join(plan.lines()))
    if script and arguments.write:
        print(f"Batch script: `{arguments.write}`.")
    elif script:
        print(f"\n{script}")


def _script(arguments: argparse.Namespace, plan: JobPlan) -> str:
    """Return the batch script, written to a file if one is given; "" if none is requested."""
    if not arguments.scheduler and not arguments.template:
        if flags := [option.flag for option in _OF_SCRIPT if getattr(arguments, option.name) != option.default]:
            raise ConfigurationError(
                f"`{flags[0]}` must be given with `--scheduler` or `--template`, because it concerns the batch "
                f"script. Received: neither. Add `--scheduler {SCHEDULERS[0]}`, or leave `{flags[0]}` out."
            )
        return ""
    further = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    job = BatchJob(
        plan=plan,
        command=tuple(_command(arguments, further)),
        walltime_s=arguments.walltime,
        scheduler=arguments.scheduler or "",
        memory_mb=max(plan.megabytes()) if arguments.memory == _PLANNED else arguments.memory,
        cores_per_rank=arguments.cores_per_rank,
        gpus_per_node=arguments.node_gpus,
        account=arguments.account or "",
        partition=arguments.partition or "",
        modules=tuple(arguments.modules or ()),
        activate=_activation(arguments.environment) if arguments.environment else "",
        script_name=os.path.abspath(arguments.write) if arguments.write else SCRIPT_NAME,
    )
    script = job.filled(_template(arguments.template), arguments.template) if arguments.template else job.script()
    if arguments.write:
        try:
            atomic_write(Path(arguments.write), script + "\n")
        except OSError as error:
            raise ConfigurationError(
                f"`--write` must name a file that can be written. Received: {arguments.write} ({error.strerror}). "
                "Choose another folder."
            ) from None
    return script


def _activation(environment: str) -> str:
    folder = os.path.abspath(os.path.expanduser(environment))
    names = ("activate", "python")
    line = activation(folder, [name for name in names if os.path.exists(os.path.join(folder, "bin", name))])
    if not line:
        raise ConfigurationError(
            "`--environment` must be the folder of a Python environment, with `bin/activate` or `bin/python`. "
            f"Received: {environment}. Create it by `python3 -m venv {shlex.quote(environment)}`, or name another."
        )
    return line


def _template(name: str) -> str:
    try:
        return regular(Path(name), _MOST_BYTES).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or ("it is not text" if isinstance(error, ValueError) else error)
        raise ConfigurationError(
            f"`--template` must name a text file that can be read. Received: {name} ({why}). Name another."
        ) from None


def _command(arguments: argparse.Namespace, further: list[str]) -> list[str]:
    words = ["nnlo-opt", "launch", "-n", str(arguments.n_ranks), "--grace", str(NOTICE_S - 30)]
    if arguments.mpirun != "mpirun":
        words += ["--mpirun", arguments.mpirun]
    words += ["--", "OptimizationDriver", "--block-size", str(arguments.block_size)]
    for option in (BY_NAME[name] for name in ("n_fold", "n_masters", "n_processes", "mode")):
        value = getattr(arguments, option.name)
        if value != option.default:
            words += [option.flag, str(value)]
    words += further or ["--model", "my_model.py", "--checkpoint", "my_run"]
    # The same script starts the run and resumes it.
    if "--opt-restore" not in words:
        words.append("--opt-restore")
    return [shlex.quote(word) for word in words]
