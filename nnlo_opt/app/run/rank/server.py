"""Main loop of a rank that trains: passes every message to the role that handles it.

With ULFM, the loop also handles deaths: any operation may raise `RanksLost`. If the coordinator has died, the rank
leaves. If a rank of the team dies, the remaining ranks regroup and get new roles.
"""

import logging
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nnlo_opt.app.run.rank.context import ProcessContext
from nnlo_opt.app.run.rank.roles import RankRoles
from nnlo_opt.app.run.workload.findings import Findings
from nnlo_opt.app.run.workload.workload import ModuleWorkload
from nnlo_opt.core.base.errors import EXIT_FAILURE, NnloError, ProtocolError
from nnlo_opt.core.base.pulse import PULSE, SLOW
from nnlo_opt.core.base.user_code import place_of, reason_of
from nnlo_opt.core.block.answers import PASSED_ON, Results, failures_to
from nnlo_opt.core.block.master.master import Master
from nnlo_opt.core.block.master.submaster import SubMaster
from nnlo_opt.core.block.worker.group import WorkerGroupMember
from nnlo_opt.core.block.worker.worker import Memory, Worker
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm import run_messages as run_msg
from nnlo_opt.core.comm.messages import Json
from nnlo_opt.core.comm.transport import RanksLost, Received, Transport, receive
from nnlo_opt.core.space.space import Space
from nnlo_opt.core.trials.checkpoint import of_message
from nnlo_opt.engine.objective.rank import ObjectiveRank
from nnlo_opt.engine.runtime.process import code_of_user

logger = logging.getLogger(__name__)

COORDINATOR = 0
#: seconds that a worker trains between two checks for messages, if it does not need one to continue
LOOK_S = 5e-2


class RankServer:
    """One rank of a team, from its start to the coordinator's Shutdown."""

    def __init__(self, roles: RankRoles, workload: ModuleWorkload, context: ProcessContext) -> None:
        self._roles, self._workload = roles, workload
        self._orders, self._team_ends = roles.placement.orders, roles.placement.transports
        self._timeline, self._preemption = context.timeline, context.preemption
        self._master: Master | None = None
        self._worker: Worker | None = None
        self._follower: WorkerGroupMember | SubMaster | None = None
        self._objective: ObjectiveRank | None = None
        self._has_told = False
        #: exit code from the coordinator; None before it arrives
        self.exit_code: int | None = None
        #: True if the coordinator has died
        self.is_orphaned = False
        #: message that opened the run; None before
        self._run: run_msg.OpenRun | None = None
        #: results that this rank has sent but the coordinator has not recorded
        self._results: list[Results] = []
        #: the last messages received, as (sender, message), for error reports
        self._story: deque[tuple[int, msg.Message]] = deque(maxlen=40)
        #: transports to receive from. Those of the team are added when the run is open: their messages may overtake the
        #: coordinator's
        self._transports: list[Transport] = [self._orders]

    def serve(self) -> int:
        """Serve until Shutdown arrives and the team no longer needs this rank; return the exit code."""
        while not self.is_orphaned and (self.exit_code is None or self._is_busy):
            if self._has_to_tell():
                self._has_told = True
                self._orders.send(COORDINATOR, run_msg.PreemptionHeard())
            if not self.step():
                try:
                    self._await_message()
                except RanksLost:
                    self._lose_ranks()
        return EXIT_FAILURE if self.exit_code is None else self.exit_code

    def _await_message(self) -> None:
        with self._timeline.span("wait", "wait"):
            found = receive(self._transports, until=self._has_to_tell)
        if found is not None:
            self._dispatch(*found)

    def _has_to_tell(self) -> bool:
        PULSE.ticks += 1  # a rank that waits for messages is alive
        return self._preemption.is_asked and not self._has_told

    @property
    def _is_busy(self) -> bool:
        # Shutdown may overtake messages of the team, and another rank may be about to step with this one.
        return any(role is not None and role.is_busy for role in (self._worker, self._follower))

    def step(self) -> bool:
        """Handle one message, or train; return True if there was anything to do."""
        try:
            return self._step()
        except RanksLost:
            self._lose_ranks()
            return True

    def _step(self) -> bool:
        PULSE.ticks += 1
        worker = self._worker
        if worker is None or not worker.works_first:
            for transport in self._transports:
                received = transport.poll()
                if received is not None:
                    self._dispatch(transport, received)
                    return True
        if worker is None or not worker.can_work:
            return False
        with code_of_user():
            worker.work(LOOK_S)
        return True

    def _dispatch(self, transport: Transport, received: Received) -> None:
        self._story.append((received.source, received.message))
        take = self._take_order if transport is self._orders else self._take_from_team
        try:
            with code_of_user():
                take(received)
        except Exception as error:
            for source, message in self._story:
                error.add_note(f"took in from {source}: {str(message)[:300]}")
            raise

    # ------------------------------------------------------------ one method per transport

    def _take_order(self, received: Received) -> None:
        message = received.message
        match message:
            case run_msg.Shutdown():
                self.exit_code = message.exit_code
            case run_msg.Check():
                self._follow(message)
                self._answer(message.space, self._workload.check)
            case run_msg.Inspect():
                with self._timeline.span("look at model and data", "data"):
                    self._inspect(message)
            case run_msg.ExportModel():
                self._export(message)
            case run_msg.OpenRun():
                self._open(message)
            case run_msg.Renumbered():
                self._roles.renumber(message)
            case _:
                if self._objective is not None:
                    with self._calling(message):
                        self._objective.handle_order(message)
                elif self._master is not None:
                    self._master.handle_order(message)
                else:
                    raise ProtocolError(f"{type(message).__name__} came before the run was open.")

    def _open(self, run: run_msg.OpenRun) -> None:
        self._run = run
        self._roles.open(run)
        self._master = self._roles.master(run)
        self._objective = self._roles.objective(run, None)
        self._stand(run, self._team_ends)

    def _stand(self, run: run_msg.OpenRun, ends: Sequence[Transport], memory: Memory | None = None) -> None:
        """Create the roles that work with other ranks of the team."""
        self._worker = self._roles.worker(run, memory)
        self._follower = self._roles.follower(run)
        self._results = [role.results for role in (self._master, self._objective) if role is not None]
        self._transports = [self._orders, *ends]

    # ------------------------------------------------------------ when ranks die

    def _lose_ranks(self) -> None:
        """Continue with the living ranks of the team; leave if the coordinator has died."""
        run = self._run
        if COORDINATOR in self._orders.lost or run is None:
            self.is_orphaned = True
            logger.warning("the coordinator has died: this rank leaves")
            for results in self._results:
                assert run is not None
                results.keep(Path(run.directory))
            return
        logger.warning("a rank of this team has died: the other ranks regroup")
        memory = None if self._worker is None else self._worker.abandon()
        if isinstance(self._follower, WorkerGroupMember):
            self._follower.abandon()
        self._roles.regroup(run)
        ends = self._roles.placement.transports
        answers = self._answer_again(run, ends[0])
        self._stand(run, ends, memory)
        if self._roles.placement.leads:
            self._orders.send(COORDINATOR, answers)

    def _answer_again(self, run: run_msg.OpenRun, end: Transport) -> msg.TeamReformed:
        """Create the role that answers the coordinator, if on this rank; return the message about the new team.

        `end`: the first endpoint of this rank in the new team.
        """
        taken = goes_on = -1
        placement, team = self._roles.placement, self._roles.placement.new_team
        if self._objective is not None:
            taken = self._objective.taken
            self._objective = self._roles.objective(run, self._objective)
        elif self._master is not None:
            taken = self._master.taken
            goes_on = self._master.regroup(end, team)
        elif placement.leads:
            self._master = self._roles.master(run)
        return msg.TeamReformed(
            alive=[*placement.alive],
            world_ranks=[] if team is None else [*team.world_ranks],
            n_masters=1 if team is None else team.n_masters,
            taken=taken,
            goes_on=goes_on,
        )

    def _take_from_team(self, received: Received) -> None:
        if self._objective is not None:
            with self._calling(received.message):
                self._objective.handle(received.message)
            return
        if self._follower is not None:
            self._follower.handle(received)
        elif not isinstance(received.message, msg.FROM_WORKERS) and self._worker is not None:
            self._worker.handle(received)
        elif self._master is not None:
            self._master.handle(received)
        elif self._worker is not None:
            self._worker.handle_follower(received)
        else:
            raise ProtocolError(f"No role of this rank takes {type(received.message).__name__}.")

    @contextmanager
    def _calling(self, message: msg.Message) -> Iterator[None]:
        """Record a call of an objective in the timeline, which lasts as long as its message is handled."""
        with self._timeline.span(type(message).__name__), PULSE.unwatched():
            yield
        self._timeline.flush()

    # ------------------------------------------------------------ model and data

    def _follow(self, message: run_msg.Check | run_msg.Inspect) -> None:
        self._workload.follow(
            compile=message.follows_compile,
            metrics=message.follows_metrics,
            optimizer=message.follows_optimizer,
            callbacks=message.calls_back,
            n_workers=message.n_workers,
        )

    def _inspect(self, message: run_msg.Inspect) -> None:
        self._follow(message)
        if message.report:
            self._answer(message.space, self._prepared_findings)
            return
        PULSE.expect(SLOW)
        # Only log errors: another rank reports them, or the first trial here fails.
        with failures_to(lambda error: logger.error("%s", reason_of(error))):
            self._prepare()

    def _prepared_findings(self, space: Space | None) -> Findings:
        self._prepare()
        return self._workload.inspect(space)

    def _answer(self, space: Json, look: Callable[[Space | None], Findings | None]) -> None:
        """Send the coordinator the result of `look` for the search space, the model and the data, or its error."""
        PULSE.expect(SLOW)
        try:
            found = look(None if space is None else Space.from_json(space))
            answer = run_msg.Inspected(findings={} if found is None else found.to_json())
        except NnloError as error:
            answer = run_msg.Inspected(error=str(error))
        except PASSED_ON:
            raise
        except BaseException as error:
            logger.exception("could not read model or data")
            last = traceback.extract_tb(error.__traceback__)[-1]
            where = "" if place_of(error) else f" (`{last.filename}`, line {last.lineno})"
            answer = run_msg.Inspected(error=f"Model or data could not be read: {reason_of(error)}{where}.")
        self._orders.send(COORDINATOR, answer)

    def _prepare(self) -> None:
        self._workload.prepare()
        self._orders.send(COORDINATOR, run_msg.Prepared())

    def _export(self, message: run_msg.ExportModel) -> None:
        PULSE.expect(SLOW)
        try:
            with self._timeline.span("save the best model", "data"):
                weights, path = of_message(message.weights_path), Path(message.path)
                path, metrics = self._workload.export(message.point, weights, path, measure=message.measure)
            answer = run_msg.ModelExported(path=str(path), metrics=metrics)
        except PASSED_ON:
            raise
        except NnloError as error:
            answer = run_msg.ModelExported(path="", error=str(error))
        except BaseException as error:
            logger.exception("could not save the best model")
            answer = run_msg.ModelExported(path="", error=reason_of(error))
        self._orders.send(COORDINATOR, answer)
