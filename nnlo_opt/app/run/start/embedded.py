"""Start of a run inside a user's script; all changes to the process are undone."""

import atexit
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from nnlo_opt.app.run.options.values import Options
from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.rank.placement import Placement
from nnlo_opt.app.run.rank.roles import RankRoles, RoleSetup
from nnlo_opt.app.run.start.driver import Driver
from nnlo_opt.app.run.start.host import Interruption, ScriptHost
from nnlo_opt.app.run.start.one_start import Start
from nnlo_opt.app.run.start.search import OptimizationDriver, plan_search
from nnlo_opt.app.run.start.serving_ranks import ServingRanks
from nnlo_opt.app.run.workload.model_maker import ModelMaker
from nnlo_opt.app.run.workload.workload import ModuleWorkload
from nnlo_opt.core.base.errors import EXIT_OK, ConfigurationError, NnloError, TrialError
from nnlo_opt.core.base.safe_path import MOST_BYTES, SafePath, discard
from nnlo_opt.core.comm.objective_messages import CallObjective
from nnlo_opt.core.comm.run_messages import OpenRun
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.comm.transport import Transport
from nnlo_opt.core.trials.events import Event
from nnlo_opt.core.trials.journal import read_events
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME, RunRequest
from nnlo_opt.engine.comm.rank_group import FailedElsewhereError, RankGroup, abort_on_error
from nnlo_opt.engine.models.builders import TrialDefinition
from nnlo_opt.engine.objective.forked import ForkedRanks
from nnlo_opt.engine.objective.rank import ObjectiveRank, RunningTrial, UserObjective
from nnlo_opt.engine.runtime.process import only_here
from nnlo_opt.engine.runtime.starter import ending_with_starter

if TYPE_CHECKING:
    from nnlo_opt.engine.comm.mpi.world import Communicator

#: error for a script, whose ranks do not regroup: its rank 0 is the coordinator
_RANK_DIED = "A rank has died: the run ends here; start again from its folder, if it has one."


def run_search(
    options: Options, model: TrialDefinition, comm: "Communicator | None", script: ScriptHost, *, n_parallel: int = 1
) -> tuple[Ledger, Path | None]:
    """Search in this process. Collective with a communicator: every rank, with the same arguments.

    Args:
        options: options of search and training. A run without a name is temporary: nothing is left on disk.
        model: the user's model or objective.
        comm: communicator of mpi4py, which is duplicated; None: this process alone, without MPI.
        script: the search space, and the script's hooks.
        n_parallel: processes that call the objective, forked from this one if more than one; only without `comm`.

    Returns:
        The ledger, equal on every rank, and the run directory, None if nothing was kept.

    Raises:
        ConfigurationError: options, space and objective do not fit together; nothing has run.
        TrialError: a trial has failed, and `script.catch` does not allow it. The rank where the objective raised
            re-raises the original exception instead.
        KeyboardInterrupt: the user has interrupted the search twice.
    """
    keeps_files = options.run.name is not None
    group, forgive = RankGroup(comm), abort_on_error(comm)
    is_forked = n_parallel > 1
    topology = group.attempt(
        lambda: Topology.plan(1 + n_parallel, 1) if is_forked else plan_search(group.size, options)
    )
    is_objective = model.kind == "objective"
    with noting_environment() as undo:
        context = ProcessContext() if is_objective else ProcessContext().settled(group, topology, options)
    interruption = Interruption() if comm is None else None
    workload = ScriptWorkload(options, context, searches=True, maker=ModelMaker(options, context, model))
    workload.interruption = interruption
    roles = RoleSetup(
        topology=topology,
        options=options,
        workload=workload,
        context=context,
        ends_with_a_death=_RANK_DIED,
    )
    script = script.replaced(
        findings=group.attempt(lambda: workload.inspect(script.space)) if is_objective else None,
        saves_model=keeps_files,
        interruption=interruption,
    )
    try:
        with ExitStack() as stack:
            temporary = stack.enter_context(temporary_run())
            ranks = None
            stack.enter_context(nullcontext() if interruption is None else interruption.listening())
            stack.enter_context(nullcontext() if comm is None else ending_with_starter())
            if is_forked:
                forked = ForkedRanks(n_parallel, partial(_objective_rank, roles), options.seed)
                stack.callback(forked.close)
                ranks = ServingRanks(forked, context.preemption, options.grace_s, can_leave_work=True)
            own_rank = ScriptRank(group, roles, ranks)
            if group.rank == 0:
                asked = options if keeps_files else replace(options, run=temporary)
                own_rank.coordinate(asked, script, OptimizationDriver)
            else:
                own_rank.serve()
            directory = own_rank.end()
            assert directory is not None
            ledger = Ledger(read_shared_events(group, directory))
            if not keeps_files and group.rank:
                discard(directory.parent)  # written by masters on other nodes
    except (TrialError, FailedElsewhereError):
        if workload.raised is not None:
            raise workload.raised from None
        raise
    finally:
        undo()
    forgive()
    group.close()
    return ledger, options.run.root / str(options.run.name) if keeps_files else None


@contextmanager
def temporary_run() -> Iterator[RunRequest]:
    """Yield a run in a temporary folder, removed at the end of the block or of this process."""
    folder = tempfile.mkdtemp(prefix="nnlo_opt-")
    remove = only_here(partial(discard, Path(folder)))
    atexit.register(remove)
    (Path(folder) / "run").mkdir()  # otherwise a run creates its folder durably, which costs milliseconds
    try:
        yield RunRequest(root=Path(folder), name="run", is_temporary=True)
    finally:
        remove()
        atexit.unregister(remove)


def _objective_rank(roles: RoleSetup, orders: Transport, run: OpenRun) -> ObjectiveRank:
    """Return the rank for a process forked from this one."""
    placement = Placement.of(roles.topology.teams[orders.rank - 1], orders, None)
    rank = RankRoles(placement, roles).objective(run, before=None)
    assert rank is not None
    return rank


class ScriptWorkload(ModuleWorkload):
    """Workload of a search in a user's script; keeps the first exception of the objective."""

    #: first exception of the user's function on this rank; None without one
    raised: Exception | None = None
    #: interrupts calls of the user's function; None: nothing does
    interruption: Interruption | None = None

    def open_program(self, start: CallObjective) -> UserObjective:
        """Return a function that calls the user's program, and keeps its first exception."""
        program = super().open_program(start)

        def noted(trial: RunningTrial) -> object:
            try:
                if self.interruption is None:
                    return program(trial)
                with self.interruption.calling():
                    return program(trial.reporting_by(self.interruption.deferred()))
            except NnloError:
                raise  # caused by another rank, or by a revoked communicator
            except Exception as error:
                self.raised = self.raised or error
                raise

        return noted


# ---------------------------------------------------------------- one start


class ScriptRank:
    """This rank in one start of a run of a user's script. Collective: every rank of `group`.

    Rank 0 calls `coordinate` while all other ranks call `serve`; then all of them call `end`.
    """

    def __init__(self, group: RankGroup, setup: RoleSetup, ranks: ServingRanks | None = None) -> None:
        self._group = group
        self._setup = setup
        self._world = group.world()
        coordinate = None if group.rank else self._work_within_call
        self._ranks = ranks or ServingRanks.of(self._world, setup.replaced(coordinate=coordinate))
        #: start of the run, on rank 0 while it coordinates
        self._start: Start | None = None
        #: run directory on rank 0; None without a run
        self._directory: Path | None = None
        #: error of a run that ended in order, on rank 0; None without one
        self._error: NnloError | None = None

    def serve(self) -> None:
        """Train, or call the objective, until rank 0 ends the run. Every rank but 0."""
        server = self._ranks.server
        assert server is not None
        server.serve()
        if server.is_orphaned:
            raise NnloError(_RANK_DIED)

    def coordinate(self, options: Options, script: ScriptHost, kind: type[Driver]) -> None:
        """Coordinate the run, on rank 0; if it ends in order with an error, `end` raises it.

        Raises:
            NnloError: the run has broken down, and other ranks may still be working: end the job.
        """
        driver = kind(options, self._setup.topology, self._ranks, self._setup.context, script)
        self._start = Start(driver)
        try:
            self._directory = self._start.run_in_script()
        except (ConfigurationError, TrialError) as error:
            if self._ranks.may_be_at_work and self._group.comm is not None:
                raise
            self._error = error

    def _work_within_call(self) -> bool:
        assert self._start is not None
        return self._start.work_within_call()

    def dismiss(self) -> None:
        """Send all other ranks away without a run, on rank 0."""
        self._ranks.release(EXIT_OK)

    def end(self) -> Path | None:
        """Release the models, receive late messages, and free the communicators. Collective: every rank.

        Returns:
            The run directory of rank 0; None without a run. If the run has ended with an error, every rank raises.
        """
        self._setup.workload.close()
        if self._world is not None:
            self._world.let_go(self._ranks.made)
        self._group.attempt(self._check)
        directory = self._group.share_json(str(self._directory or ""))
        return Path(str(directory)) if directory else None

    def _check(self) -> None:
        if self._error is not None:
            raise self._error


def read_shared_events(group: RankGroup, directory: Path) -> list[Event]:
    """Return the events of the run in rank 0's `directory`. Collective: every rank of `group`."""
    path = SafePath(directory) / JOURNAL_NAME
    text = group.share_json(path.read_bytes(MOST_BYTES).decode() if group.rank == 0 else None)
    return read_events(str(text).encode(), str(path))[0]


@contextmanager
def noting_environment() -> Iterator[Callable[[], None]]:
    """Yield a function that restores the environment variables changed in the block."""
    before, after = dict(os.environ), dict[str, str]()

    def undo() -> None:
        for name, value in after.items():
            if os.environ.get(name) != value:
                continue  # the script has changed it meanwhile
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]
        after.clear()

    yield undo
    after.update({name: value for name, value in os.environ.items() if before.get(name) != value})
