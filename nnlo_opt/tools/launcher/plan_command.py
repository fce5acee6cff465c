"""`nnlo-opt plan`: prints the roles, the memory, the batch script of a job before it is started."""

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace

from nnlo_opt.app.commands.arguments import Parser
from nnlo_opt.app.run.options.checks import check_teams
from nnlo_opt.app.run.options.kinds import duration, one_of, whole
from nnlo_opt.app.run.options.table import BY_NAME, Option
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.training.options import MODES
from nnlo_opt.engine.search.custom import rules_with
from nnlo_opt.tools.launcher.planning import LEAST_S, NOTICE_S, SCHEDULERS, JobPlan, Memory

# fmt: off
_KNOWN = Memory()
#: options of `nnlo-opt plan`
OPTIONS = (
    Option("n_ranks", "RANKS", whole(), short="-n", also="-np", example="129", help="ranks of the job; required"),
    *(replace(BY_NAME[name], group="") for name in ("block_size", "n_fold", "n_masters", "n_processes")),
    replace(BY_NAME["mode"], kind=one_of(*MODES), group=""),
    Option("node_cores", "CORES", whole(), default=64, example="128", help="ranks on a node"),
    Option("walltime", "TIME", duration(LEAST_S), default=14400.0, shown="4h", example="90m",
        help="time of one allocation, in seconds or as 90m, 2h or 1:30:00"),
    Option("scheduler", "NAME", one_of(*SCHEDULERS), shown="none", example=SCHEDULERS[0],
        help=f"also print a batch script of {' or '.join(SCHEDULERS)}"),
    *(
        Option(f"{role}_mb", "MB", whole(0, "MB"), default=known_mb, example="1000",
            help=f"memory of a {role}, without samples and weights")
        for role, known_mb in asdict(_KNOWN).items()
    ),
)
# fmt: on


def main(parser: Parser, argv: Sequence[str]) -> None:
    """Print which rank of a search plays which role, what memory nodes need, and a batch script. Nothing is started."""
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
    plan = JobPlan(
        topology=topology,
        ranks_per_node=arguments.node_cores,
        memory=Memory(**{role: getattr(arguments, f"{role}_mb") for role in asdict(_KNOWN)}),
    )
    print("\n".join(plan.lines()))
    if arguments.scheduler:
        further = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
        print(f"\n{plan.script(arguments.scheduler, _command(arguments, further), arguments.walltime)}")


def _command(arguments: argparse.Namespace, further: list[str]) -> list[str]:
    words = ["nnlo-opt", "launch", "-n", str(arguments.n_ranks), "--grace", str(NOTICE_S - 30), "--"]
    words += ["OptimizationDriver", "--block-size", str(arguments.block_size)]
    for option in (BY_NAME[name] for name in ("n_fold", "n_masters", "n_processes", "mode")):
        value = getattr(arguments, option.name)
        if value != option.default:
            words += [option.flag, str(value)]
    words += further or ["--model", "my_model.py", "--checkpoint", "my_run"]
    # The same script starts the run and resumes it.
    if "--opt-restore" not in words:
        words.append("--opt-restore")
    return [shlex.quote(word) for word in words]
