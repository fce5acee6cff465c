"""Start of a run inside a user's own script; it undoes every change of the process."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from nnlo_opt.block.task import TaskFactory
from nnlo_opt.comm.messages import Json
from nnlo_opt.comm.run_messages import Shutdown
from nnlo_opt.comm.topology import Topology
from nnlo_opt.coordinator.coordinator import Observer
from nnlo_opt.errors import EXIT_OK, ConfigurationError, NnloError, ProtocolError, TrialError
from nnlo_opt.models.builders import ModelDefinition
from nnlo_opt.objective.rank import BlockComm, Objective, Report
from nnlo_opt.run.agreement import FailedElsewhereError, RankGroup, abort_on_error
from nnlo_opt.run.context import ProcessContext
from nnlo_opt.run.findings import Findings
from nnlo_opt.run.options import Options
from nnlo_opt.run.roles import RankParts, RoleSetup
from nnlo_opt.run.search import SearchSession
from nnlo_opt.run.server import Workload
from nnlo_opt.run.session import Script, Session, SessionSetup
from nnlo_opt.run.workload import ModuleWorkload
from nnlo_opt.space.space import Point, Space
from nnlo_opt.trials.events import Event
from nnlo_opt.trials.journal import read_events
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.run_directory import JOURNAL_NAME, RunRequest

if TYPE_CHECKING:
    from nnlo_opt.comm.mpi.world import Communicator, World

#: a script's rank 0 is its coordinator, and the other ranks may not outlive it
_RANK_DIED = "A rank has died: the run ends here; start again from its folder, if it has one."


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSetup:
    """Everything that a search in a user's own process is made from; the same on every rank.

    At least one of `objective` and `model` is given.
    """

    #: of these count what says how is searched and trained; `run` counts if `keeps_files`
    options: Options
    space: Space
    #: the user's function (parameters, comm, report) -> value; `comm` is None without MPI
    objective: Objective | None = None
    #: the model; with `objective`, a description of it
    model: ModelDefinition | None = None
    #: communicator of mpi4py, which is duplicated; None: this process alone, without MPI
    comm: "Communicator | None" = None
    #: if False, the journal is temporary, and nothing is left on disk
    keeps_files: bool = False
    #: if False, the first trial that fails ends the search, and its error is raised
    catch: bool = True
    #: hear every event on rank 0 after the ledger knows it
    observers: Sequence[Observer] = ()
    #: name of the program, for the journal
    program: str = "nnlo_opt.optimize"


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOutcome:
    """Outcome of a search; equal on every rank."""

    ledger: Ledger
    #: run directory; None if nothing was kept
    directory: Path | None


def run_search(setup: SearchSetup) -> SearchOutcome:
    """Search in this process; with a communicator, every rank of it calls this together.

        options = Options(model="f", plan=SearchPlan(num_iterations=20), ...)
        outcome = run_search(SearchSetup(options=options, space=Space([Real(0, 1, name="x")]), objective=f))
        best = outcome.ledger.best("min")

    Raises:
        ConfigurationError: options, space and objective do not fit together; nothing has run.
        TrialError: a trial has failed, and `catch` is False. On the rank on which the objective raised its own
            exception is raised instead.
    """
    group = RankGroup(setup.comm)
    forgive = _nothing if setup.comm is None else abort_on_error(setup.comm)
    outcome = _search(group, setup)
    forgive()
    group.close()
    return outcome


def _search(group: RankGroup, setup: SearchSetup) -> SearchOutcome:
    options = setup.options
    topology = group.attempt(
        lambda: Topology.plan(
            group.size, options.block_size, options.plan.n_fold, options.n_masters, options.n_processes
        )
    )
    with noting_environment() as undo:
        context, findings, workload = _workload(group, topology, setup)
    roles = RoleSetup(
        topology=topology,
        training=options.training,
        comparison=options.comparison,
        workload=workload,
        context=context,
        is_one_training=False,
        ends_with_a_death=_RANK_DIED,
    )
    script = Script(
        program=setup.program,
        space=setup.space,
        findings=findings,
        keeps_files=setup.keeps_files,
        saves_model=setup.keeps_files,
        catch=setup.catch,
        observers=setup.observers,
    )
    try:
        with temporary_run() as temporary:
            if not setup.keeps_files:
                options = replace(options, run=temporary)
            return _start(group, roles, options, script)
    except (TrialError, FailedElsewhereError):
        if isinstance(workload, CalledObjective) and workload.raised is not None:
            raise workload.raised from None
        raise
    finally:
        undo()


def _start(group: RankGroup, roles: RoleSetup, options: Options, script: Script) -> SearchOutcome:
    seat = Seat(group, roles)
    result: Callable[[], Path | None] = _nothing
    if group.rank == 0:
        result = seat.coordinate(options, script, SearchSession)
    else:
        seat.serve()
    seat.close()
    group.attempt(result)
    directory = Path(str(group.share_json(str(result()))))
    ledger = Ledger(read_shared_events(group, directory))
    if not script.keeps_files and group.rank:
        shutil.rmtree(directory, ignore_errors=True)  # what masters on other nodes have written
    return SearchOutcome(ledger=ledger, directory=directory if script.keeps_files else None)


@contextmanager
def temporary_run() -> Iterator[RunRequest]:
    """Yield a run in a new folder, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="nnlo_opt-") as folder:
        yield RunRequest(root=Path(folder), name="run")


def _workload(
    group: RankGroup, topology: Topology, setup: SearchSetup
) -> tuple[ProcessContext, Findings | None, Workload]:
    """Return what the process has, and the workload of this rank; findings if no trainer rank need be asked."""
    options, context = setup.options, ProcessContext()
    if setup.objective is not None:
        found = Findings(model=options.model, kind="objective", source="", sha256="", space=setup.space, figure="value")
        if setup.model is not None:
            module = ModuleWorkload(options, 1, True, given=setup.model)
            found = group.attempt(lambda: module.inspect(setup.space))
        return context, found, CalledObjective(setup.objective)
    context = context.settled(group, topology, options)
    ahead = context.has_spare_core
    return context, None, ModuleWorkload(options, context.n_threads, True, gathers_ahead=ahead, given=setup.model)


class ScriptWorkload:
    """Workload of a rank of a user's script; a subclass overrides what the rank is to do."""

    def prepare(self) -> None:
        """Import nothing: the script does."""

    def inspect(self, space: Space | None) -> Findings:
        """Raise ProtocolError: the script knows model and data."""
        raise ProtocolError("A script has nothing to inspect.")

    def export(self, point: Point, weights_directory: Path, path: Path) -> Path:
        """Raise ProtocolError: the script saves its model itself."""
        raise ProtocolError("A script has nothing to export.")

    def tasks(self) -> TaskFactory:
        """Return the maker of this rank's tasks."""
        raise ProtocolError("An objective of a script trains by itself.")

    def judge(self, fold: dict[str, Json]) -> object:
        """Raise ProtocolError: there is no figure of merit of the user."""
        raise ProtocolError("A script has no figure of merit.")

    @property
    def objective(self) -> Objective:
        """The user's function."""
        raise ProtocolError("A training has no objective.")


class CalledObjective(ScriptWorkload):
    """Workload of a search whose objective is a function of the user's script."""

    def __init__(self, function: Objective) -> None:
        self._function = function
        #: first exception of the user's function on this rank; None before there is one
        self._raised: Exception | None = None

    @property
    def raised(self) -> Exception | None:
        """First exception that the user's function raised on this rank."""
        return self._raised

    @property
    def objective(self) -> Objective:
        """The user's function, whose first exception is kept."""
        return self._call

    def _call(self, parameters: Point, comm: BlockComm | None, report: Report) -> object:
        try:
            return self._function(parameters, comm, report)
        except NnloError:
            raise  # of another rank, or of a communicator that was given up
        except Exception as error:
            self._raised = self._raised or error
            raise


def _nothing() -> None:
    return None


# ---------------------------------------------------------------- one start


class Seat:
    """Place of this rank in one start of a run of a user's script. Collective: every rank of `group`.

    Rank 0 coordinates by `coordinate` while every other rank is in `serve`; then all of them call `close`.
    """

    def __init__(self, group: RankGroup, setup: RoleSetup) -> None:
        self._group = group
        self._setup = setup
        self._world = _world_of(group)
        self._parts = RankParts.of(self._world, setup)

    def serve(self) -> None:
        """Train, or call the objective, until rank 0 says that the run is over. Every rank but 0."""
        server = self._parts.server
        assert server is not None
        server.serve()
        if server.is_orphaned:
            raise NnloError(_RANK_DIED)

    def coordinate(
        self, options: Options, script: Script, kind: Callable[[SessionSetup], Session]
    ) -> Callable[[], Path]:
        """See the run through, on rank 0.

        Returns:
            A function that returns the run directory, or raises the error with which the run has ended in good order;
            to be called when the other ranks have been heard.

        Raises:
            NnloError: the run has broken down, and other ranks may still be at work: end the job.
        """
        session = kind(
            SessionSetup(
                options=options,
                topology=self._setup.topology,
                ranks=self._parts.ranks,
                pump=self._parts.pump,
                context=self._setup.context,
                script=script,
            )
        )
        try:
            directory = session.run_in_script()
        except (ConfigurationError, TrialError) as error:
            if session.is_running and self._group.comm is not None:
                raise
            return partial(_fail, error)
        return lambda: directory

    def dismiss(self) -> None:
        """Have every other rank leave without a run, on rank 0."""
        for rank in range(1, self._group.size):
            self._parts.ranks.send(rank, Shutdown(exit_code=EXIT_OK))

    def close(self) -> None:
        """Release the models, take in what has come late, and free the communicators. Collective: every rank."""
        if self._parts.roles is not None:
            self._parts.roles.close()
        if self._world is not None:
            placement = self._parts.placement
            self._world.let_go([] if placement is None else placement.made)


def _world_of(group: RankGroup) -> "World | None":
    if group.comm is None:
        return None
    from nnlo_opt.comm.mpi.world import World

    return World(group.comm)


def _fail(error: Exception) -> NoReturn:
    raise error


def read_shared_events(group: RankGroup, directory: Path) -> list[Event]:
    """Return the events of the run that rank 0 has in `directory`. Collective: every rank of `group`."""
    path = directory / JOURNAL_NAME
    text = group.share_json(path.read_text() if group.rank == 0 else None)
    return read_events(str(text).encode(), str(path))[0]


@contextmanager
def noting_environment() -> Iterator[Callable[[], None]]:
    """Yield a function that takes back what the block has changed of the environment variables."""
    before, after = dict(os.environ), dict[str, str]()

    def undo() -> None:
        for name, value in after.items():
            if os.environ.get(name) != value:
                continue  # the script has changed it since
            if name in before:
                os.environ[name] = before[name]
            else:
                del os.environ[name]
        after.clear()

    yield undo
    after.update({name: value for name, value in os.environ.items() if before.get(name) != value})
