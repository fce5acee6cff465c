"""`nnlo-opt plan`: what a job is made of, and its batch script, before anything is started."""

import argparse
import shlex

from nnlo_opt.cli.values import whole
from nnlo_opt.comm.topology import Topology
from nnlo_opt.errors import EXIT_OK, ConfigurationError
from nnlo_opt.launcher.planning import NOTICE_S, SCHEDULERS, JobPlan, Memory
from nnlo_opt.run.checks import check_mode, check_teams

MODES = ("downpour", "easgd", "gem", "allreduce")


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of `run`."""
    parser.add_argument("-n", metavar="RANKS", type=whole(), dest="n_ranks", required=True, help="ranks of the job")
    parser.add_argument(
        "--block-size", metavar="RANKS", type=whole(), default=2, help="as OptimizationDriver (default: %(default)s)"
    )
    parser.add_argument(
        "--n-fold", metavar="FOLDS", type=whole(), default=1, help="as OptimizationDriver (default: %(default)s)"
    )
    for option, of in (("--n-masters", "masters of a team"), ("--n-processes", "ranks of a worker")):
        parser.add_argument(
            option, metavar="N", type=whole(), default=1, help=f"{of}, as OptimizationDriver (default: %(default)s)"
        )
    parser.add_argument(
        "--mode", choices=MODES, default=MODES[0], help="update rule, as OptimizationDriver (default: %(default)s)"
    )
    parser.add_argument(
        "--node-cores", metavar="CORES", type=whole(), default=64, help="ranks on a node (default: %(default)s)"
    )
    parser.add_argument(
        "--walltime",
        metavar="MINUTES",
        type=whole(5, "minutes"),
        default=240,
        help="of one allocation (default: %(default)s)",
    )
    parser.add_argument("--scheduler", choices=SCHEDULERS, help="print a batch script too (default: none)")
    known = Memory()
    for role in ("coordinator", "search", "master", "worker"):
        parser.add_argument(
            f"--{role}-mb",
            metavar="MB",
            type=whole(0, "MB"),
            default=getattr(known, role),
            help="memory of this role, less samples and weights (default: %(default)s)",
        )
    parser.add_argument(
        "command",
        metavar="-- OPTION ...",
        nargs=argparse.REMAINDER,
        help="further options of OptimizationDriver, for the script",
    )


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if arguments.n_ranks > 1 and arguments.block_size > arguments.n_ranks - 1:
        raise ConfigurationError(
            f"`--block-size` must leave a rank for the coordinator. Received: {arguments.block_size} of "
            f"{arguments.n_ranks} ranks; take at least {arguments.block_size + 1} ranks, or smaller blocks."
        )
    n_masters, n_processes = arguments.n_masters, arguments.n_processes
    topology = Topology.plan(arguments.n_ranks, arguments.block_size, arguments.n_fold, n_masters, n_processes)
    check_mode(arguments, arguments.mode)
    check_teams(topology, n_masters, n_processes)
    plan = JobPlan(
        topology=topology,
        every_rank=arguments.mode == "allreduce",
        ranks_per_node=arguments.node_cores,
        memory=Memory(
            coordinator=arguments.coordinator_mb,
            search=arguments.search_mb,
            master=arguments.master_mb,
            worker=arguments.worker_mb,
        ),
    )
    print("\n".join(plan.lines()))
    if arguments.scheduler:
        further = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
        print(f"\n{plan.script(arguments.scheduler, _command(arguments, further), arguments.walltime)}")
    return EXIT_OK


def _command(arguments: argparse.Namespace, further: list[str]) -> list[str]:
    words = ["nnlo-opt", "launch", "-n", str(arguments.n_ranks), "--grace", str(NOTICE_S - 30), "--"]
    words += ["OptimizationDriver", "--block-size", str(arguments.block_size)]
    if arguments.n_fold > 1:
        words += ["--n-fold", str(arguments.n_fold)]
    for option, value in (("--n-masters", arguments.n_masters), ("--n-processes", arguments.n_processes)):
        if value > 1:
            words += [option, str(value)]
    if arguments.mode != MODES[0]:
        words += ["--mode", arguments.mode]
    words += further or ["--model", "my_model.py", "--checkpoint", "my_run"]
    # The same script begins the run and goes on with it.
    if "--opt-restore" not in words:
        words.append("--opt-restore")
    return [shlex.quote(word) for word in words]
