"""One start of a run on world rank 0, from the first check to the last line.

A training is a search of one trial, so both drivers share the checks, the journal, the resume and the end. What they
do differently stands in `app.run.start.search` and `app.run.start.training`.
"""

import os
import signal
import sys
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from nnlo_opt.app.reporting.follow import Reporter
from nnlo_opt.app.reporting.lines import ProgressLines
from nnlo_opt.app.reporting.status_lines import bottom_line
from nnlo_opt.app.reporting.words import counted, metrics_text
from nnlo_opt.app.run.afterwards import last_steps
from nnlo_opt.app.run.afterwards.best_model import save_model
from nnlo_opt.app.run.afterwards.mirrors import ask_mirrors, end_mirrors
from nnlo_opt.app.run.options.checks import check_momentum, check_shares, check_teams, least_workers
from nnlo_opt.app.run.options.space_checks import check_training, idle_options
from nnlo_opt.app.run.options.values import Options
from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.rank.roles import RoleSetup
from nnlo_opt.app.run.start.console import Console, WaitForSpace
from nnlo_opt.app.run.start.host import Host
from nnlo_opt.app.run.start.identity import (
    check_same,
    follows_compile,
    identity_of,
    refuse_run_of_script,
    remark_on_command,
    settings_of,
)
from nnlo_opt.app.run.start.inbox import Inbox
from nnlo_opt.app.run.start.running_search import RunningSearch
from nnlo_opt.app.run.start.script_folders import changed_text, folders_of
from nnlo_opt.app.run.start.serving_ranks import ASKED, PREEMPTED, ServingRanks
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.app.run.workload.workload import ModuleWorkload
from nnlo_opt.core.base.clock import SystemClock, check_start
from nnlo_opt.core.base.errors import (
    EXIT_FAILURE,
    EXIT_OK,
    EXIT_PREEMPTED,
    NOTHING_BEGUN,
    ConfigurationError,
    NnloError,
    OutOfTimeError,
    ProtocolError,
    TrialError,
)
from nnlo_opt.core.base.pulse import PULSE
from nnlo_opt.core.comm.messages import Json
from nnlo_opt.core.comm.run_messages import Check, Inspect, Inspected, OpenRun
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.comm.transport import wait_until
from nnlo_opt.core.coordinator.coordinator import Coordinator, CoordinatorSetup, Observer, Search
from nnlo_opt.core.coordinator.instructions import LastEnd, SearchPlan
from nnlo_opt.core.coordinator.state import CoordinatorState
from nnlo_opt.core.search.pruning import Pruner
from nnlo_opt.core.space.space import Space
from nnlo_opt.core.trials import unrecorded
from nnlo_opt.core.trials.deaths import first_by_team, read_notes, remove_notes
from nnlo_opt.core.trials.events import AssignmentFailed, Event, RunStarted, TrialFailed
from nnlo_opt.core.trials.identity import RunIdentity, ScriptFolders
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_directory import RunDirectory, choose_name, open_run, refuse_existing
from nnlo_opt.engine.data.lists import read_list
from nnlo_opt.engine.models.builders import model_file
from nnlo_opt.engine.models.framework import framework_name
from nnlo_opt.engine.objective.working_folder import remove_stale_links
from nnlo_opt.engine.runtime.environment import idle_nodes_text
from nnlo_opt.engine.runtime.process import code_of_user
from nnlo_opt.engine.runtime.timeline import TIMELINE_NAME, clear_parts

if TYPE_CHECKING:
    from nnlo_opt.engine.comm.mpi.world import World

#: seconds that trials under way are given to end in a search that ends with a failure
LONG_S = 1e7
#: reason of a search that its user has interrupted
INTERRUPTED = "interrupted"


class Session(ABC):
    """One start of a run on world rank 0; the other ranks serve it (`app.run.rank.server`) until told to leave.

    Args:
        options: of the run.
        topology: plan of all ranks.
        ranks: that serve the start.
        context: of this process.
        host: the process of the start.
    """

    #: the driver
    driver: ClassVar[str]
    #: all trials are pieces of one training, whose checkpoints stay when a fold has ended: it may be continued
    is_one_training: ClassVar[bool] = False

    def __init__(
        self, options: Options, topology: Topology, ranks: ServingRanks, context: ProcessContext, host: Host
    ) -> None:
        self.options = options
        self.topology = topology
        self.host = host
        #: name of the command for the user, and for the journal of a command
        self.program = options.program or self.driver
        self._ranks = ranks
        self._context = context
        self._mirrors = context.mirrors
        self._timeline = context.timeline
        self._preemption = context.preemption
        self._asked_because = PREEMPTED if context.exit_code_file is None else ASKED
        self._clock = SystemClock()
        #: when this start began; a walltime counts from here
        self.began_unix_s = self._clock.unix_s()
        self._console = Console(prints=host.owns_process, quiet=options.quiet, warn=host.warn)
        #: prints a line for a person
        self.say = self._console.say
        #: observations of other runs with which the search begins; known when it has been started
        self.adopted: list[dict[str, Json]] = []
        #: the run; None before it is open
        self._running: RunningSearch | None = None
        #: error of the coordinator within a call of the user's code; raised after that call
        self._raised: Exception | None = None
        #: the first trial that has failed, for a search that ends with it; empty before
        self._failure = ""
        #: pruner of one's own; None for the one that the plan names
        self.pruner: Pruner | None = None
        #: traceback of the last failure; empty if it was no exception of the user's code
        self._traceback = ""
        #: names of the reports that are written; empty before the end
        self._reports: tuple[str, ...] = ()
        #: True while other ranks may be at work
        self.is_running = False
        #: ledger of the run; None before the run is open
        self._ledger: Ledger | None = None

    # ------------------------------------------------------------ what the drivers do differently

    def load_space(self) -> Space | None:
        """Return the search space; None if it comes from the model module, or there is none."""
        return None

    def check_findings(self, findings: Findings) -> None:  # noqa: B027  (a training works with all)
        """Raise ConfigurationError if this command cannot work with this model and these data."""

    @abstractmethod
    def start_search(self, findings: Findings, identity: RunIdentity, ledger: Ledger) -> Search:
        """Start the search; `identity` belongs to the first start of the run, `ledger` holds everything since."""

    def plan_for(self, directory: RunDirectory) -> SearchPlan:
        """Return the plan of this start, given what the run has reached."""
        return self.options.plan

    @abstractmethod
    def greet(self, directory: RunDirectory, findings: Findings) -> None:
        """Say what is about to happen."""

    def lines(self, state: CoordinatorState) -> Observer:
        """Return what prints the events of the journal."""
        return ProgressLines(self.say, state.plan, state.ledger, state.policy)

    @abstractmethod
    def conclude(self, directory: RunDirectory, figure: str, model_path: Path | None) -> int:
        """Say how the run has ended; return the exit code."""

    def close(self) -> None:  # noqa: B027  (most have nothing to let go of)
        """End everything that `load_space` and `start_search` have started."""

    # ------------------------------------------------------------ from start to end

    def run(self) -> int:
        """See the run through; return the exit code, with which every rank leaves."""
        self._preemption.allow(self.options.grace_s)
        code = EXIT_FAILURE
        try:
            self.check_early()
            code = self._run()[1]
        except NnloError as error:
            code = error.exit_code
            if self.is_running or isinstance(error, OutOfTimeError | ProtocolError):
                # Ranks are busy and hear nothing: the journal is enough to go on from, so the job ends at once.
                raise
            self.say(str(error), sys.stderr)
        except KeyboardInterrupt:
            code = EXIT_PREEMPTED
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            raise KeyboardInterrupt(self._last_words()) from None
        finally:
            if self.options.on_end and self._running is not None:
                left_s = self._preemption.left_s
                last_steps.run_at_end(self.options.on_end, self._running.directory, code, left_s, self.say)
            self.close()
            self._console.close()
        code = self._context.hand_in(code)
        self._ranks.release(code)
        return code

    def run_in_script(self) -> Path:
        """See the run through for a user's own script, to which errors are raised; every rank leaves.

        Returns:
            The run directory.
        """
        try:
            return self._run()[0]
        finally:
            self.close()
            self._ranks.release(EXIT_OK)

    def _run(self) -> tuple[Path, int]:
        """Return the run directory and the exit code."""
        run = self.begin()
        try:
            while not run.coordinator.finished_because:
                # Wait anew after every message: its answer may come at once.
                wait_until(partial(self.turn, run), transport=self._ranks.transport)
            if self._failure:
                self.is_running = False
                raise self._failed()
            return run.directory.path, self.end(run)
        finally:
            run.close(self.host)

    def begin(self) -> RunningSearch:
        """Check the request and open the run, with its coordinator at work; the caller closes the run."""
        findings = self.host.findings or self._inspect()
        findings = replace(findings, remarks=(*findings.remarks, *self._check(findings)))
        training = self.options.training.with_steps(findings.steps)
        self.options = replace(self.options, training=training)
        directory = self._open_directory(findings)
        self._ledger = ledger = directory.ledger
        try:
            identity = identity_of(self.options, findings)
            self._check_resumed(directory, identity)
            if self.topology.remark:
                self.say(self.topology.remark)
            if self.host.owns_process:
                self.greet(directory, findings)
            elif findings.unused:
                (self.host.warn or self.say)(findings.unused)
            scripts = folders_of(self.options, directory, self.say)
            plan = self.plan_for(directory)
            with code_of_user():
                search = self.start_search(findings, ledger.identity if ledger.sessions else identity, ledger)
            if self.options.run.overwrite:
                directory.begin_anew()
            self._open_on_ranks(directory, findings, scripts)
            directory.journal.wait_for_room(WaitForSpace(directory.shown, self.say))
            settings = settings_of(self.options, findings, scripts, self.host, self.program)
            directory.record(self._started(directory, identity, settings), self.say)
            self._running = self._coordinate(directory, search, plan, findings)
        except BaseException:
            directory.abandon()
            raise
        return self._running

    def turn(self, run: RunningSearch) -> bool:
        """Let the coordinator work, or else the ranks of this process; return True if there was anything to do."""
        if self._raised is not None:
            raise self._raised
        if (interruption := self.host.interruption) is not None and interruption.n_asked:
            run.coordinator.preempt(INTERRUPTED, 0.0)
        try:
            # The ranks of this process work only while the coordinator has nothing to do.
            with code_of_user():
                return self._coordinates(run) or self._ranks.work()
        except KeyboardInterrupt:
            if interruption is None or interruption.n_asked != 1:
                raise
            return True

    def end(self, run: RunningSearch) -> int:
        """Do all that is to be done when no trial runs any more; return the exit code."""
        directory, findings, coordinator = run.directory, run.findings, run.coordinator
        self._console.hide_bottom()
        stuck = {self.topology.teams[team].block for team in coordinator.membership.suspects}
        if self.host.owns_process:
            last_steps.end_if_stuck(stuck, self.options.plan.budget.trial_timeout_s or 0.0, self.say)
        if not coordinator.is_complete:
            coordinator.complete()  # there may be no time for more
        model_path, test = None, dict[str, float]()
        if coordinator.all_stopped and not findings.is_objective and self.host.saves_model:
            model_path, test = self._save_best(run)
        if coordinator.is_complete:
            coordinator.complete(test)
        if not self.is_one_training:
            last_steps.remove_stale_checkpoints(directory.path, directory.ledger)
            remove_stale_links(directory.path, directory.ledger)
        # They work while the reports are written.
        mirrors_until_s = ask_mirrors(run.mirrors, self._preemption.left_s)
        if run.reporter is not None:
            self._reports = last_steps.write_last_reports(
                run.reporter, directory, self.say, wait=self.host.ending_wait(), is_slow=self.host.waits_for
            )
        end_mirrors(run.mirrors, directory, mirrors_until_s, self.say)
        self._console.end_quiet()
        code = self.conclude(directory, findings.figure, model_path) if self.host.owns_process else EXIT_OK
        if test:
            self.say(f"On the test data, `{self.options.data.test_data}`: {metrics_text(test)}")
        if self._timeline.keeps:
            self.say(f"Timeline: `{directory.shown / TIMELINE_NAME}`; open it in https://ui.perfetto.dev.")
        if self._preemption.is_over or (self.host.owns_process and not coordinator.all_stopped):
            raise OutOfTimeError("there is no time left to wait for busy ranks: the job ends at once.")
        return code

    # ------------------------------------------------------------ to begin

    def check_early(self) -> None:
        """Refuse wrong options before any rank imports a heavy package."""
        options = self.options
        options.training.rule.check_groups(options.n_masters, options.n_processes)
        check_teams(self.topology, options.n_masters, options.n_processes)
        if options.log_file is not None:
            self._console.keep(options.log_file)
        check_training(options.training)
        for path in (options.data.train_data, options.data.val_data, options.data.test_data):
            if path is not None:
                read_list(path)
        if options.model.endswith((".py", ".json")) and not os.path.isfile(options.model):
            raise ConfigurationError(
                f"`--model` must name a file that exists. Received: {options.model!r}; check the path."
            )
        for tool in options.mirror:
            self._mirrors.require(tool)
        refuse_existing(options.run)
        refuse_run_of_script(options.run)

    def _inspect(self) -> Findings:
        """Return the findings of a trainer rank about model and data."""
        n_ranks = self.topology.world_size
        self.say(f"{self.program} on {counted(n_ranks, 'rank')}: reading model and data.")
        for remark in self.options.remarks:
            self.say(remark)
        reporter = self.topology.teams[0].first_trainer_rank
        trainers = [rank for team in self.topology.teams for rank in team.trainer_ranks]
        asked = list[int]()
        with self._console.waiting(lambda: self._awaited(asked)):
            loaded = self.load_space()
            space = None if loaded is None else loaded.to_json()
            # Before any rank imports a framework: a sentence comes at once, and no rank is kept by its import then.
            follows = follows_compile(self.options.run)
            if early := self._ask(reporter, Check(space=space, follows_compile=follows)):
                self._check(Findings.from_json(early))
            asked += trainers
            for rank in trainers:
                if rank != reporter:
                    inspect = Inspect(report=False, space=space, follows_compile=follows)
                    self._ranks.transport.send(rank, inspect)
            findings = self._ask(reporter, Inspect(report=True, space=space, follows_compile=follows))
        return Findings.from_json(findings)

    def _ask(self, reporter: int, question: Check | Inspect) -> dict[str, Json]:
        inspected = self._ranks.ask(reporter, question, Inspected)
        if inspected.error:
            raise ConfigurationError(inspected.error)
        return inspected.findings

    def _check(self, findings: Findings) -> tuple[str, ...]:
        """Raise ConfigurationError if this request cannot work with this model and these data; return remarks."""
        self.check_findings(findings)
        training, own = self.options.training, findings.trains_itself
        idle = () if findings.is_objective else idle_options(training, findings.space, own=own)
        shares = check_shares(self.options, self.topology, findings)
        return (*shares, *check_momentum(self.options, self.topology, findings), *idle)

    def _awaited(self, asked: Sequence[int]) -> str:
        """Return what a start waits for before there is a run; `asked`: ranks that were to import a framework."""
        options, n_left = self.options, len(set(asked) - self._ranks.prepared)
        if not n_left:
            return f"Waiting: {'building the model' if asked else 'reading model and data'}"
        name = framework_name(model_file(options.model), options.backend)
        if name == "keras":
            name = options.keras_backend or os.environ.get("KERAS_BACKEND") or "tensorflow"
        who = f" for {n_left} of {len(asked)} ranks that train" if len(asked) > 1 else ""
        return f"Waiting{who}: importing {name}"

    def say_data(self, findings: Findings) -> None:
        """Say how many samples there are, and what there is to remark on model and data."""
        if (data := findings.data) is not None:
            folds = f", pooled and cut into {self.options.plan.n_fold} folds" * (self.options.plan.n_fold > 1)
            self.say(f"Data: {data.n_train:,} training and {data.n_validation:,} validation samples{folds}.")
        for line in findings.remarks:
            self.say(line)

    def _open_directory(self, findings: Findings) -> RunDirectory:
        """Return the directory of the run, which is locked."""
        name, remark = choose_name(self.options.run, findings.model, self.program)
        if remark:
            self.say(remark)
        return open_run(self.options.run, name, syncs=self.host.keeps_files)

    def _check_resumed(self, directory: RunDirectory, identity: RunIdentity) -> None:
        """Raise ConfigurationError if the run in `directory` is another one than this start asks for."""
        request = self.options.run
        if directory.ledger.sessions:
            refuse_existing(replace(request, name=directory.path.name))
            if remark := check_same(directory.ledger.identity, identity, str(directory.shown), request):
                (self.host.warn or self.say)(remark)
            if remark := remark_on_command(directory.ledger.settings, self.options):
                self.say(remark)
            if n_cut := directory.journal.n_cut:
                self.say(f"Cut {counted(n_cut, 'byte')} off the end of the journal: a write that was not completed.")
        elif request.restore and request.name is not None:
            self.say(f"No journal in `{directory.shown}`: starting a new run.")

    def _open_on_ranks(self, directory: RunDirectory, findings: Findings, scripts: ScriptFolders) -> None:
        """Have all ranks write to the run from now on."""
        if self._timeline.keeps:
            clear_parts(directory.path)
        # So many workers must a master still have for its update rule when ranks have died.
        space = None if self.is_one_training else findings.search_space
        opened = OpenRun(
            directory=str(directory.path.resolve()),
            is_objective=findings.is_objective,
            parameters=[] if space is None else [*space.names],
            with_tuples=[*self.options.with_tuples] if space is None else space.with_tuples,
            n_fold=self.options.plan.n_fold,
            seed=self.options.seed,
            least_children=least_workers(self.options, findings),
            is_temporary=not self.host.keeps_files,
            scripts=scripts,
        )
        for rank in range(self._ranks.transport.size):
            if rank != self._ranks.transport.rank or self.topology.team_of_rank(rank):
                self._ranks.transport.send(rank, opened)
        self.is_running = True
        if self.options.monitor and findings.is_objective:
            self.say("`--monitor` has no effect: it measures workers, and an objective has none.")
        if self.options.keep_weights and not findings.pauses and self.options.command is None:
            self.say("`--keep-weights` has no effect: an objective without `checkpoint` keeps its weights by itself.")
        self._context.say_at_the_end(self._last_words)
        self._context.open(directory.path, self.topology)

    def _started(self, directory: RunDirectory, identity: RunIdentity, settings: dict[str, Json]) -> RunStarted:
        ledger, unix_s = directory.ledger, self._clock.unix_s()
        since_s = unix_s - ledger.first_start_unix_s if ledger.sessions else 0.0
        check_start(unix_s, since_s)
        return RunStarted(
            time_s=since_s,
            unix_s=unix_s,
            n_ranks=self.topology.world_size,
            n_blocks=self.topology.n_blocks,
            identity=identity.plain,
            settings=settings,
            adopted=[] if ledger.sessions else self.adopted,
            cut_bytes=directory.journal.n_cut,
        )

    def _coordinate(
        self, directory: RunDirectory, search: Search, plan: SearchPlan, findings: Findings
    ) -> RunningSearch:
        """Return the run with its coordinator at work."""
        state = CoordinatorState(plan, self.topology, directory.ledger, self.pruner)
        space = None if self.is_one_training else findings.search_space
        inbox = Inbox(directory.path, space, directory.ledger, self.options.grace_s, self.say)
        observers = [*([self.lines(state)] if self.host.owns_process else []), *self.host.observers, inbox]
        setup = CoordinatorSetup(
            state=state,
            journal=directory.journal,
            ranks=self._ranks.transport,
            search=search,
            clock=self._clock,
            observers=observers if self.host.catch is True else [*observers, self],
            on_preemption=self._preemption.ask,
            on_shared=lambda changed: self.say(changed_text(changed)),
            requests=lambda: [*inbox(), *self.host.requests()],
            on_declined=inbox.decline,
        )
        coordinator = Coordinator(setup)
        if (left_s := self._preemption.left_s) is not None:
            coordinator.preempt(self._asked_because, left_s)
        deaths = read_notes(directory.path)
        is_unexplained = bool(deaths) and all(death.world_rank is None for death in deaths)
        remove_notes(directory.path)  # before anything begins that they are not about
        last_end = LastEnd(died=first_by_team(deaths), unexplained=is_unexplained)
        coordinator.begin(last_end, unrecorded.read(directory.path))
        unrecorded.forget(directory.path)
        ascii_only = "utf" not in (getattr(sys.stdout, "encoding", None) or "").lower()
        self._console.show_bottom(lambda n: bottom_line(state.ledger, coordinator.now_s, n, ascii_only=ascii_only))
        if self.host.keeps_files:
            inbox.start()
        return RunningSearch(
            directory=directory,
            findings=findings,
            coordinator=coordinator,
            reporter=Reporter(directory.path) if self.host.keeps_files else None,
            mirrors=[self._mirrors.start(directory.path, tool) for tool in self.options.mirror],
            inbox=inbox,
        )

    # ------------------------------------------------------------ to coordinate

    def work_within_call(self) -> bool:
        """Let the coordinator work within a call of the user's code, which must not get its errors.

        Return False if it has failed.
        """
        assert self._running is not None
        try:
            self._coordinates(self._running)
        except Exception as error:
            self._raised = self._raised or error
        return self._raised is None

    def observe(self, event: Event, ledger: Ledger) -> None:
        """Note the trial whose failure ends the search; raise TrialError if no other rank may be at work."""
        if isinstance(event, AssignmentFailed):
            self._traceback = event.traceback
        if not isinstance(event, TrialFailed) or self._failure:
            return
        n_trials = ledger.n_by_state()
        if self.host.catch is None and (n_trials["complete"] or n_trials["pruned"] or not self._traceback):
            return
        self._failure = f"trial {event.trial} has failed: {event.reason}"
        if self._ranks.can_leave_work:
            raise self._failed()

    def _failed(self) -> TrialError:
        """Return the error of the trial whose failure ends the search."""
        error = TrialError(self._failure)
        if self._traceback and self._traceback not in self._failure:
            error.add_note(self._traceback)
        return error

    def _coordinates(self, run: RunningSearch) -> bool:
        """Let the coordinator work; return True if there was anything to do, or the search is over."""
        PULSE.ticks += 1
        if (left_s := self._preemption.left_s) is not None:
            run.coordinator.preempt(self._asked_because, left_s)
        if self._failure:
            run.coordinator.preempt(self._failure, LONG_S)  # what is under way ends as well
        if run.coordinator.finished_because:
            return True
        since = self._timeline.now()
        if stepped := run.coordinator.step():
            self._timeline.add("step", since, track="coordinator", category="coordinator")
            self._timeline.flush()
        return stepped

    # ------------------------------------------------------------ to end

    def _save_best(self, run: RunningSearch) -> tuple[Path | None, dict[str, float]]:
        """Have a trainer rank save the best model; return its path, if there is a model, and metrics of test data."""
        directory, coordinator, best = run.directory, run.coordinator, run.directory.ledger.result
        if best is None or not best.folds:
            return None, {}
        teams = coordinator.membership.responsive or self.topology.teams[:1]
        candidates = [team.first_trainer_rank for team in teams]
        direction, is_over = self.options.plan.direction, coordinator.is_complete
        saved = save_model(self._ranks, candidates, directory.path, best, direction, measure=is_over)
        if saved.error:
            self.say(f"The best model could not be saved or measured: {saved.error}", sys.stderr)
            return None, {}
        return directory.shown / Path(saved.path).name, saved.metrics

    def _last_words(self) -> str:
        """Return a line for a run that a signal interrupts, with the command that resumes it, and make place for it."""
        self._console.hide_bottom()
        if self._ledger is None:
            return NOTHING_BEGUN
        if self._running is not None:
            self._running.directory.note_interruption()
        n_ranks = self.topology.world_size
        words = [*["mpirun", "-np", str(n_ranks)] * (n_ranks > 1), self.program, *self.options.command_line]
        return self.options.run.interrupted_text(self._ledger, words)


def run_command(
    kind: type[Session], topology: Topology, world: "World", options: Options, context: ProcessContext
) -> int:
    """Run a command on this rank; return the exit code. Collective: every rank of the world."""
    context = context.settled(world, topology, options)
    if idle := idle_nodes_text(world.n_nodes(), world.size):
        options = replace(options, remarks=(*options.remarks, idle))

    def coordinate() -> bool:
        return session.work_within_call()

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
    session = kind(options, topology, ranks, context, Host())
    return session.run()
