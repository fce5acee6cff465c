"""One start of a run on world rank 0, from the first check to the last line: begin, coordinate, end."""

import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nnlo_opt.app.run.afterwards import last_steps
from nnlo_opt.app.run.options.values import Options
from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.rank.roles import RoleSetup
from nnlo_opt.app.run.start.begin import Beginning
from nnlo_opt.app.run.start.coordinate import RunningSearch
from nnlo_opt.app.run.start.driver import Driver
from nnlo_opt.app.run.start.end import Ending
from nnlo_opt.app.run.start.host import Host
from nnlo_opt.app.run.start.serving_ranks import ServingRanks
from nnlo_opt.app.run.workload.workload import ModuleWorkload
from nnlo_opt.core.base.errors import (
    EXIT_FAILURE,
    EXIT_OK,
    EXIT_PREEMPTED,
    NOTHING_BEGUN,
    NnloError,
    OutOfTimeError,
    ProtocolError,
)
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.engine.runtime.environment import idle_nodes_text

if TYPE_CHECKING:
    from nnlo_opt.engine.comm.mpi.world import World


class Start:
    """One start of a run on world rank 0; the other ranks serve it (`app.run.rank.server`) until released.

    Args:
        driver: the search or training.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._beginning = Beginning(driver, self._last_words)
        #: the run; None before it is open
        self._running: RunningSearch | None = None

    def run(self) -> int:
        """Execute the run of a command; return the exit code of every rank."""
        driver = self._driver
        preemption, options, say = driver.context.preemption, driver.options, driver.say
        preemption.allow(options.grace_s)
        code = EXIT_FAILURE
        try:
            self._beginning.check_early()
            code = self._see_through()[1]
        except NnloError as error:
            code = error.exit_code
            if driver.ranks.may_be_at_work or isinstance(error, OutOfTimeError | ProtocolError):
                # Busy ranks do not receive messages. The journal is enough for a resume, so end the job at once.
                raise
            say(str(error), sys.stderr)
        except KeyboardInterrupt:
            code = EXIT_PREEMPTED
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            raise KeyboardInterrupt(self._last_words()) from None
        finally:
            if options.on_end and self._running is not None:
                last_steps.run_at_end(options.on_end, self._running.directory, code, preemption.left_s, say)
            self.close()
            driver.console.close()
        code = driver.context.hand_in(code)
        driver.ranks.release(code)
        return code

    def run_in_script(self) -> Path:
        """Execute the run of a user's script; raise errors, and release every rank.

        Returns:
            The run directory.
        """
        try:
            return self._see_through()[0]
        finally:
            self.close()
            self._driver.ranks.release(EXIT_OK)

    def _see_through(self) -> tuple[Path, int]:
        """Begin, coordinate and end; return the run directory and the exit code."""
        run = self.begin()
        try:
            run.coordinate()
            return run.directory.path, self.end()
        finally:
            run.close()

    def begin(self) -> RunningSearch:
        """Check the request, open the run and start its coordinator; the caller closes the run."""
        self._running = self._beginning.begin()
        return self._running

    def end(self) -> int:
        """Do everything that remains after the last trial; return the exit code."""
        assert self._running is not None
        return Ending(self._driver, self._running).end()

    def close(self) -> None:
        """Stop everything that the driver has started."""
        self._driver.close()

    def work_within_call(self) -> bool:
        """Let the coordinator work during a call of user code; return False if it has failed."""
        assert self._running is not None
        return self._running.work_within_call()

    def _last_words(self) -> str:
        """Return a line for a run interrupted by a signal, with the command to resume it; removes the status line."""
        driver, directory = self._driver, self._beginning.directory
        driver.console.hide_bottom()
        if directory is None:
            return NOTHING_BEGUN
        if self._running is not None:
            directory.note_interruption()
        n_ranks = driver.topology.world_size
        words = [*["mpirun", "-np", str(n_ranks)] * (n_ranks > 1), driver.program, *driver.options.command_line]
        return driver.options.run.interrupted_text(directory.ledger, words)


def run_command(
    kind: type[Driver],
    topology: Topology,
    world: "World",
    options: Options,
    context: ProcessContext,
    start_of: Callable[[Driver], Start] = Start,
) -> int:
    """Run a command on this rank; return the exit code. Collective: every rank of the world.

    `start_of`: creates the start on world rank 0.
    """
    context = context.settled(world, topology, options)
    if idle := idle_nodes_text(world.n_nodes(), world.size):
        options = replace(options, remarks=(*options.remarks, idle))

    def coordinate() -> bool:
        return start.work_within_call()

    roles = RoleSetup(
        topology=topology,
        options=options,
        workload=ModuleWorkload(options, context, searches=not kind.is_one_training),
        context=context,
        coordinate=None if world.rank else coordinate,
    )
    ranks = ServingRanks.of(world, roles)
    if world.rank:
        assert ranks.server is not None
        return ranks.server.serve()
    start = start_of(kind(options, topology, ranks, context, Host()))
    return start.run()
