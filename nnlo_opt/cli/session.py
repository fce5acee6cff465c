"""One start of a run on world rank 0, from the first check to the last line.

A training is a search of one trial, so both drivers share the checks, the journal, the resume and the end. What they
do differently stands in `cli.optimization` and `cli.training`.
"""

import logging
import math
import os
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from nnlo_opt.cli.checks import check_mode, check_shares, check_teams, check_training, elastic_forces
from nnlo_opt.cli.console import Console
from nnlo_opt.cli.identity import check_same, identity_of
from nnlo_opt.cli.options import Options
from nnlo_opt.cli.ranks import Own
from nnlo_opt.cli.room import WaitForRoom
from nnlo_opt.cli.start import record_start, settings_of
from nnlo_opt.cli.watch import begin_watch
from nnlo_opt.clock import SystemClock
from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.run_messages import (
    ExportModel,
    Inspect,
    Inspected,
    ModelExported,
    OpenRun,
    PreemptionHeard,
    Shutdown,
)
from nnlo_opt.comm.topology import Team, Topology
from nnlo_opt.comm.transport import Transport, wait_until
from nnlo_opt.coordinator.attempts import LastEnd
from nnlo_opt.coordinator.coordinator import Coordinator, Search
from nnlo_opt.coordinator.instructions import SearchPlan
from nnlo_opt.coordinator.roster import Roster
from nnlo_opt.coordinator.state import CoordinatorState
from nnlo_opt.data.lists import read_list
from nnlo_opt.errors import (
    EXIT_FAILURE,
    EXIT_WRONG_REQUEST,
    ConfigurationError,
    JournalError,
    NnloError,
    OutOfTimeError,
    ProtocolError,
)
from nnlo_opt.pulse import PULSE
from nnlo_opt.report.follow import Reporter
from nnlo_opt.report.lines import ProgressLines
from nnlo_opt.report.results import write_results
from nnlo_opt.training.checkpoint import fold_directory, remove_all
from nnlo_opt.training.timeline import TIMELINE_NAME, clear_parts
from nnlo_opt.trials import unrecorded
from nnlo_opt.trials.deaths import first_by_team, read_notes, remove_notes
from nnlo_opt.trials.events import RunStarted
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.run_directory import RunDirectory, choose_name, open_run, refuse_existing
from nnlo_opt.trials.trial import Trial

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer", bound=msg.Message)
#: name of the best model in the run directory; its ending is the framework's
BEST_MODEL = "best_model"
#: why a start ends that was asked to
PREEMPTED = "preempted by SIGUSR1"
#: seconds that other ranks have to leave after a search that has lost some
SEE_OFF_S = 10.0
#: seconds that ranks have at least to leave after a search in which one may be stuck
LEAVE_S = 60.0
#: how long the ranks of this process work before the coordinator looks again; what is slower is one batch
PUMP_S = 1e-3


class RankDiedError(NnloError):
    """A rank that was asked something has died."""


class Session(ABC):
    """One start of a run. The other ranks serve it (`block.server`) until it tells them to leave."""

    #: the command, for the journal
    program: ClassVar[str]
    #: whether checkpoints stay when a fold has ended: a training may be continued, a trial of a search has its end
    keeps_checkpoints: ClassVar[bool] = False

    def __init__(
        self,
        options: Options,
        topology: Topology,
        ranks: Transport,
        pump: Callable[[], bool],
        own: Own,
    ) -> None:
        """`pump` lets the ranks that live in this process work a step; -> whether there was anything to do."""
        self.options = options
        self.topology = topology
        self._ranks = ranks
        self._pump = pump
        self._timeline = own.timeline
        self._preemption = own.preemption
        self._watchdog = own.watchdog
        self._clock = SystemClock()
        #: when this start began; a walltime counts from here
        self.began_unix_s = self._clock.unix_s()
        self._console = Console()
        #: tells a person a line
        self.say = self._console.say
        #: what other runs have measured and the search begins with; known when it has been started
        self.adopted: list[dict[str, Any]] = []
        #: whether other ranks may be at work
        self._running = False

    # ------------------------------------------------------------ what the drivers do differently

    @abstractmethod
    def load_space(self) -> dict[str, Any] | None:
        """The search space where it does not come from the model module."""

    @abstractmethod
    def check_findings(self, findings: dict[str, Any]) -> None:
        """ConfigurationError where this command cannot do it with this model and these data."""

    @abstractmethod
    def start_search(self, findings: dict[str, Any], identity: dict[str, Any], ledger: Ledger) -> Search:
        """What suggests points; `identity` is that of the run's first start, `ledger` what happened since."""

    def plan_for(self, directory: RunDirectory) -> SearchPlan:
        """What is to be reached from where the run stands."""
        return self.options.plan

    def trial_to_keep(self, ledger: Ledger) -> Trial | None:
        """The trial whose model is saved at the end."""
        return ledger.best(self.options.plan.direction)

    @abstractmethod
    def greet(self, directory: RunDirectory, findings: dict[str, Any]) -> None:
        """Say what is about to happen."""

    @abstractmethod
    def conclude(self, directory: RunDirectory, figure: str, model_path: Path | None) -> int:
        """Say how it ended; returns the exit code."""

    def close(self) -> None:  # noqa: B027  (most have nothing to let go of)
        """Let go of what `load_space` and `start_search` have started."""

    # ------------------------------------------------------------ from start to end

    def run(self) -> int:
        """See the run through; every rank is told to leave with the code that is returned."""
        code = EXIT_FAILURE
        self._preemption.allow(self.options.grace_s)
        try:
            self._check_early()
            code = self._run()
        except (OutOfTimeError, ProtocolError):
            raise
        except NnloError as error:
            if self._running:
                # Ranks are busy and hear nothing: the journal is enough to go on from, so the job ends at once.
                raise
            self.say(str(error), sys.stderr)
            if isinstance(error, ConfigurationError | JournalError):
                code = EXIT_WRONG_REQUEST
        finally:
            self.close()
            self._console.close()
        for rank in range(self._ranks.size):
            if rank != self._ranks.rank:
                self._ranks.send(rank, Shutdown(exit_code=code))
        self._ranks.flush(timeout_s=30.0)
        if self._ranks.lost:
            self._see_off()
        return code

    def _see_off(self) -> None:
        """Stay until the others have left: nobody finalizes MPI, and who sees us gone first takes it for a death."""
        n_others = self._ranks.size - 1

        def all_left() -> bool:
            while self._ranks.poll() is not None:
                pass
            return not self._pump() and len(self._ranks.lost) >= n_others

        wait_until(all_left, SEE_OFF_S)

    def _check_early(self) -> None:
        """What can be refused before any rank imports anything heavy."""
        options = self.options
        check_mode(options, options.training.mode)
        check_teams(self.topology, options.n_masters, options.n_processes)
        if options.log_file is not None:
            self._console.keep(options.log_file)
        check_training(options.training)
        for path in (options.data.train_data, options.data.val_data):
            if path is not None:
                read_list(path)
        if options.model.endswith((".py", ".json")) and not Path(options.model).is_file():
            raise ConfigurationError(
                f"`--model` must name a file that exists. Received: {options.model!r}; check the path."
            )
        refuse_existing(options.run)

    def _inspect(self) -> dict[str, Any]:
        """Have a trainer rank read model and data; its findings."""
        space = self.load_space()
        n_ranks = self.topology.world_size
        self.say(f"{self.program} on {n_ranks} rank{'s' * (n_ranks > 1)}: reading model and data.")
        for remark in self.options.remarks:
            self.say(remark)
        reporter = self.topology.teams[0].first_trainer_rank
        for team in self.topology.teams:
            for rank in team.trainer_ranks(every_rank=self.options.training.mode == "allreduce"):
                if rank != reporter:
                    self._ranks.send(rank, Inspect(report=False, space=space))
        inspected = self._ask(reporter, Inspect(report=True, space=space), Inspected)
        if inspected.error:
            raise ConfigurationError(inspected.error)
        return inspected.findings

    def n_workers(self, team: Team) -> int:
        """Workers of a team under the update rule of the command line."""
        every_rank = self.options.training.mode == "allreduce"
        return team.n_workers(every_rank=every_rank)

    def _least_children(self, findings: dict[str, Any]) -> int:
        """Workers that a master must still have for the update rule when ranks have died."""
        return math.ceil(max(elastic_forces(self.options, findings), default=1.0))

    def _run(self) -> int:
        findings = self._inspect()
        self.check_findings(findings)
        check_shares(self.options, self.topology, findings)
        name, remark = choose_name(self.options.run, findings["model"], self.program)
        if remark:
            self.say(remark)
        directory = open_run(self.options.run, name)
        try:
            return self._run_in(directory, findings)
        finally:
            directory.close()

    def _run_in(self, directory: RunDirectory, findings: dict[str, Any]) -> int:
        options, ledger = self.options, directory.ledger
        identity = identity_of(options, findings)
        if ledger.sessions:
            refuse_existing(replace(options.run, name=directory.name))
            check_same(ledger.identity, identity, str(directory.path), options.run)
        elif options.run.restore and options.run.name is not None:
            self.say(f"No journal in `{directory.path}`: starting afresh.")
        if self.topology.remark:
            self.say(self.topology.remark)
        self.greet(directory, findings)
        plan = self.plan_for(directory)
        search = self.start_search(findings, ledger.identity or identity, ledger)
        if self._timeline.keeps:
            clear_parts(directory.path)
        settings = {"kind": findings["kind"], "least_children": self._least_children(findings)}
        opened = OpenRun(directory=str(directory.path.resolve()), settings=settings)
        for rank in range(self._ranks.size):
            if rank != self._ranks.rank or self.topology.team_of_rank(rank):
                self._ranks.send(rank, opened)
        self._running = True
        if self.options.monitor and findings["kind"] == "objective":
            self.say("`--monitor` measures workers, which an objective has none of: no load will be in the history.")
        self._timeline.open(directory.path)
        begin_watch(self._watchdog, self.topology, directory.path)
        directory.journal.on_full = WaitForRoom(directory.path, self.say)
        record_start(directory, self._started(ledger, identity), self.say)
        reporter = Reporter(directory.path)
        coordinator = self._coordinate(directory, search, plan)
        self._mind_suspects(coordinator.suspects)
        if not coordinator.is_complete:
            coordinator.complete()  # there may be no time for more
        model_path = None
        if coordinator.all_stopped:
            model_path = self._export_best(directory, findings["kind"], coordinator.suspects, coordinator.roster)
        if coordinator.is_complete:
            coordinator.complete()
        self._remove_stale_checkpoints(directory)
        self._finish_reports(reporter, directory)
        code = self.conclude(directory, findings["figure"], model_path)
        if self._timeline.keeps:
            self.say(f"Timeline: `{directory.path / TIMELINE_NAME}`; open it in https://ui.perfetto.dev.")
        if not coordinator.all_stopped or self._preemption.is_over:
            raise OutOfTimeError("no time is left to wait for ranks that are at work: the job ends at once.")
        return code

    def _coordinate(self, directory: RunDirectory, search: Search, plan: SearchPlan) -> Coordinator:
        """Run the coordinator until the search is over."""
        progress = ProgressLines(self.say, plan.num_iterations, plan.n_fold, plan.direction)
        state = CoordinatorState(plan, self.topology, directory.ledger)
        coordinator = Coordinator(state, directory.journal, self._ranks, search, self._clock, [progress])
        coordinator.heard_preemption = self._preemption.ask
        if (left_s := self._preemption.left_s) is not None:
            coordinator.preempt(PREEMPTED, left_s)
        deaths = read_notes(directory.path)
        is_unexplained = bool(deaths) and all(death.world_rank is None for death in deaths)
        remove_notes(directory.path)  # before anything begins that they are not about
        last_end = LastEnd(died=first_by_team(deaths), unexplained=is_unexplained)
        coordinator.begin(last_end, unrecorded.read(directory.path))
        unrecorded.forget(directory.path)

        def look() -> bool:
            PULSE.ticks += 1
            left_s = self._preemption.left_s
            if left_s is not None:
                coordinator.preempt(PREEMPTED, left_s)
            # The ranks of this process work only while the coordinator has nothing to do.
            return bool(coordinator.finished_because) or self._step(coordinator) or self._pump_for_a_while()

        while not coordinator.finished_because:
            # Anew after everything that came: what answers it may come at once.
            wait_until(look, transport=self._ranks)
        return coordinator

    def _pump_for_a_while(self) -> bool:
        """Let the ranks of this process work, a look at the coordinator's messages every `PUMP_S`."""
        until_s = time.perf_counter() + PUMP_S
        worked = False
        while self._pump():
            worked = True
            if time.perf_counter() >= until_s:
                break
        return worked

    def _mind_suspects(self, suspects: Collection[int]) -> None:
        """Let no rank that is stuck in code of the user keep the job from ending."""
        if not suspects:
            return

        def leave() -> None:
            blocks = sorted({self.topology.teams[team].block for team in suspects})
            self.say(
                f"Block {' and '.join(map(str, blocks))} is stuck in a trial that took too long, and does not leave: "
                "the job is ended. What is finished is in the journal.",
                sys.stderr,
            )
            os._exit(EXIT_FAILURE)

        timer = threading.Timer(max(LEAVE_S, self.options.plan.budget.trial_timeout_s or 0.0), leave)
        timer.daemon = True  # a job whose ranks all leave is not kept by it
        timer.start()

    def _finish_reports(self, reporter: Reporter, directory: RunDirectory) -> None:
        """Have the reports written for the last time; they can always be made again."""
        if reporter.finish():
            return
        try:
            write_results(directory.path, directory.ledger)
        except OSError as error:
            self.say(
                f"results.csv and summary.json could not be written ({error.strerror or error}): `nnlo-opt report "
                f"{directory.path}` makes them anew from the journal.",
                sys.stderr,
            )

    def _step(self, coordinator: Coordinator) -> bool:
        since = self._timeline.now()
        stepped = coordinator.step()
        if stepped:
            self._timeline.add("step", since, track="coordinator", category="coordinator")
            self._timeline.flush()
        return stepped

    def _started(self, ledger: Ledger, identity: dict[str, Any]) -> RunStarted:
        unix_s = self._clock.unix_s()
        return RunStarted(
            time_s=unix_s - ledger.first_start_unix_s if ledger.sessions else 0.0,
            unix_s=unix_s,
            n_ranks=self.topology.world_size,
            n_blocks=self.topology.n_blocks,
            identity=identity,
            settings=settings_of(self.program, self.options),
            adopted=[] if ledger.sessions else self.adopted,
        )

    def _remove_stale_checkpoints(self, directory: RunDirectory) -> None:
        """Remove checkpoints of ended folds whose master was killed before it heard that it may."""
        if self.keeps_checkpoints:
            return
        for assignment in directory.ledger.assignments:
            PULSE.ticks += 1
            trial = directory.ledger.trials[assignment.trial]
            if trial.state.ended or assignment.fold in trial.folds:
                remove_all(fold_directory(directory.path, trial.number, assignment.fold))

    # ------------------------------------------------------------ the best model

    def _export_best(
        self, directory: RunDirectory, kind: str, suspects: Collection[int], roster: Roster
    ) -> Path | None:
        """Have a trainer rank save the best model; its place, None where there is none."""
        best = self.trial_to_keep(directory.ledger)
        if best is None or not best.folds or kind != "model":
            return None
        weights = fold_directory(directory.path, best.number, best_fold(best, self.options.plan.direction))
        order = ExportModel(
            point=best.point,
            weights_path=str(weights.resolve()),
            path=str((directory.path / BEST_MODEL).resolve()),
        )
        teams = [team for block in range(1, self.topology.n_blocks + 1) for team in roster.ready(block)]
        ranks = [team.first_trainer_rank for team in teams if team.index not in suspects]
        answer = self._export(ranks or [self.topology.teams[0].first_trainer_rank], order)
        if answer.error:
            self.say(f"The best model could not be saved: {answer.error}", sys.stderr)
            return None
        return directory.path / Path(answer.path).name

    def _export(self, ranks: Sequence[int], order: ExportModel) -> ModelExported:
        """The answer of the first of `ranks` that lives to give one."""
        why = ""
        for rank in ranks:
            try:
                return self._ask(rank, order, ModelExported)
            except RankDiedError as error:
                why = str(error)
            except OutOfTimeError as error:
                return ModelExported(path="", error=str(error))
        return ModelExported(path="", error=why)

    def _ask(self, rank: int, question: msg.Message, kind: type[Answer]) -> Answer:
        """Send `question` and wait for the answer; what blocks still say about ended assignments is dropped.

        OutOfTimeError where the grace of a preemption ends before it comes, RankDiedError where it cannot come.
        """
        self._ranks.send(rank, question)
        found: list[Answer] = []

        def look() -> bool:
            PULSE.ticks += 1
            while not found:
                if self._preemption.is_over or rank in self._ranks.lost:
                    return True
                received = self._ranks.poll()
                if received is None:
                    if not self._pump():
                        return False
                elif isinstance(received.message, kind):
                    found.append(received.message)
                elif isinstance(received.message, PreemptionHeard):
                    self._preemption.ask()
            return True

        wait_until(look, transport=self._ranks)
        if not found and rank in self._ranks.lost:
            raise RankDiedError(f"Rank {rank} has died before it answered; start again.")
        if not found:
            raise OutOfTimeError(f"{PREEMPTED}, and its {self.options.grace_s:g} s are over.")
        return found[0]


def best_fold(trial: Trial, direction: str) -> int:
    """The fold of a complete trial whose model is kept: that with the best figure of merit."""
    sign = -1.0 if direction == "max" else 1.0
    return min(trial.folds, key=lambda fold: (sign * trial.folds[fold].figure_of_merit, fold))
