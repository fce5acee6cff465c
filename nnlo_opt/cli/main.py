"""Entry points of the console commands.

No heavy package is imported before a handler for SIGUSR1 is installed: without one the signal, which batch systems
send, kills the job. Thread counts are set before NumPy is imported, which reads them once.
"""

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from nnlo_opt.runtime.environment import MPI_START_S, ranks_outlive_others, say_that_mpi_has_begun
from nnlo_opt.runtime.preemption import Preemption

if TYPE_CHECKING:
    from nnlo_opt.comm.mpi.world import World
    from nnlo_opt.run.context import ProcessContext
    from nnlo_opt.run.options import Options

Run = Callable[["World", "Options", "ProcessContext"], int]


def optimization_driver() -> NoReturn:
    """Run `OptimizationDriver`. Collective: every rank of the world."""
    _drive("optimization")


def training_driver() -> NoReturn:
    """Run `TrainingDriver`. Collective: every rank of the world."""
    _drive("training")


def get_data() -> NoReturn:
    """Run `GetData`, in one process."""
    _print_anything()
    from nnlo_opt.cli import getdata

    sys.exit(getdata.main())


def build_model() -> NoReturn:
    """Run `BuildModel`, in one process."""
    _print_anything()
    from nnlo_opt.cli import buildmodel

    sys.exit(buildmodel.main())


def tool() -> NoReturn:
    """Run `nnlo-opt`, in one process."""
    _print_anything()
    from nnlo_opt.cli import tool as module

    sys.exit(module.main())


def _drive(command: str) -> NoReturn:
    preemption = Preemption()
    preemption.listen()
    _leave(*_launch(command, sys.argv[1:], preemption), preemption)


def _launch(command: str, argv: Sequence[str], preemption: Preemption) -> tuple[int, Path | None]:
    """Run `command` on this rank; return the exit code of all ranks, and on rank 0 the folder of its timeline."""
    _print_anything()
    from nnlo_opt.runtime import devices

    devices.cap_threads()
    with _no_longer_than(MPI_START_S if ranks_outlive_others() else 0):
        from nnlo_opt.comm.mpi.world import World  # before anything else that imports it
    from nnlo_opt.cli.arguments import HelpRequested
    from nnlo_opt.clock import SystemClock
    from nnlo_opt.comm.mpi.ulfm import be_missed, losing_ranks
    from nnlo_opt.comm.transport import RanksLost
    from nnlo_opt.errors import (
        EXIT_FAILURE,
        EXIT_OK,
        EXIT_PREEMPTED,
        EXIT_WRONG_REQUEST,
        ConfigurationError,
        JournalError,
        NnloError,
        OutOfTimeError,
        ProtocolError,
    )
    from nnlo_opt.run.context import ProcessContext
    from nnlo_opt.run.roles import story_of
    from nnlo_opt.runtime.log import RankOutput
    from nnlo_opt.runtime.timeline import NO_TIMELINE, RankTimeline, events_per_rank
    from nnlo_opt.runtime.watchdog import Watchdog

    be_missed()
    world = World()
    if world.rank == 0:
        say_that_mpi_has_begun()
    parse, run = _command(command)
    try:
        options = parse(argv)
    except HelpRequested as request:
        if world.rank == 0:
            print(request, end="")
        return EXIT_OK, None
    except ConfigurationError as error:
        if world.rank == 0:
            print(error, file=sys.stderr)
        return EXIT_WRONG_REQUEST, None
    output = RankOutput(world.rank, options.log_level, to_terminal=world.rank == 0)
    watchdog = Watchdog(world.rank, options.hang_timeout_s, output.tell_terminal)
    timeline = NO_TIMELINE
    if options.timeline:
        timeline = RankTimeline(world.rank, f"rank {world.rank}", SystemClock(), events_per_rank(world.size))
    try:
        with closing(timeline), losing_ranks():
            context = ProcessContext(output=output, timeline=timeline, preemption=preemption, watchdog=watchdog)
            code = run(world, options, context)
        watchdog.leave()
        return code, timeline.directory if world.rank == 0 else None
    except KeyboardInterrupt:
        output.tell_terminal("Interrupted: finished trials are in the journal. Add `--opt-restore` to resume.")
        code = 128 + signal.SIGINT
    except OutOfTimeError as error:
        output.tell_terminal(f"Preempted: {error}")
        code = EXIT_PREEMPTED
    except NnloError as error:
        if isinstance(error, ProtocolError):
            output.tell_terminal(story_of(world.rank, error))
        else:
            output.tell_terminal(f"Rank {world.rank}: {error}")
        wrong = isinstance(error, ConfigurationError | JournalError)
        code = EXIT_WRONG_REQUEST if wrong else EXIT_FAILURE
    except RanksLost:
        output.tell_terminal(f"Rank {world.rank}: another rank has died before the run was open; start again.")
        code = EXIT_FAILURE
    except BaseException as error:
        output.tell_terminal(story_of(world.rank, error))
        code = EXIT_FAILURE
    if world.size > 1:
        world.abort(code)
    return code, timeline.directory


@contextmanager
def _no_longer_than(seconds: int) -> Iterator[None]:
    """End this process by SIGALRM if the block takes longer; 0: it may take any time."""
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def _command(command: str) -> tuple[Callable[[Sequence[str]], "Options"], Run]:
    from nnlo_opt.cli.arguments import parse_optimization, parse_training

    if command == "optimization":
        from nnlo_opt.run import search as optimization

        return parse_optimization, optimization.run
    from nnlo_opt.run import training

    return parse_training, training.run


def _print_anything() -> None:
    """Write a character that a terminal cannot show as an escape, so that it does not end a run."""
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
    sys.exit(exit_code)
