"""Search in this process whose trials the caller runs."""

import tempfile
import time
from collections import deque
from dataclasses import dataclass, replace
from pathlib import Path

from nnlo_opt.comm import messages as msg
from nnlo_opt.comm.loopback import LoopbackNetwork
from nnlo_opt.comm.topology import Topology
from nnlo_opt.comm.transport import Transport
from nnlo_opt.errors import ConfigurationError, TrialError
from nnlo_opt.models.builders import ModelDefinition
from nnlo_opt.objective.values import finished_fold, returned_values
from nnlo_opt.run.context import ProcessContext
from nnlo_opt.run.options import Options
from nnlo_opt.run.search import SearchSession
from nnlo_opt.run.session import Script, SessionSetup
from nnlo_opt.run.workload import ModuleWorkload
from nnlo_opt.space.space import Point, Space
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.run_directory import RunRequest

#: seconds that the trials under way are given to end when the search is closed; they end at once
_LONG_S = 1e7


@dataclass(slots=True, kw_only=True)
class _Call:
    """Trial that the caller runs in place of a rank."""

    order: msg.RunFold
    rank: Transport
    #: monotonic time of its beginning
    began_s: float
    #: last epoch reported
    last_epoch: int = 0
    #: True once the coordinator has ordered it to stop
    stop_asked: bool = False


class AskedSearch:
    """Search in this process whose trials the caller runs.

    Args:
        options: options of the search and of its run.
        space: search space.
        n_parallel: most trials that may be under way at a time.
        keeps_files: if False, the journal is temporary.
        source: script that runs the trials, for the journal.

    Raises:
        ConfigurationError: the options contradict each other, or the run is another search.
    """

    def __init__(self, options: Options, space: Space, *, n_parallel: int, keeps_files: bool, source: str) -> None:
        topology = Topology.plan(1 + n_parallel, 1)
        network = LoopbackNetwork(topology.world_size)
        self._ranks = [network.end(team.master_rank) for team in topology.teams]
        #: None if files are kept
        self._folder = None if keeps_files else tempfile.TemporaryDirectory(prefix="nnlo_opt-")
        if self._folder is not None:
            options = replace(options, run=RunRequest(root=Path(self._folder.name), name="run"))
        self.options = options
        definition = ModelDefinition(
            name="study",
            kind="objective",
            source=Path(source),
            functions={"objective": lambda parameters: parameters},
            function="nnlo_opt.Study",
            fingerprint="nnlo_opt.Study",
        )
        script = Script(
            program="nnlo_opt.Study",
            space=space,
            findings=ModuleWorkload(options, ProcessContext(), searches=True, given=definition).inspect(space),
            keeps_files=keeps_files,
            n_wanted=lambda n_blocks: min(n_blocks, self._n_wanted),
        )
        #: trials handed out to the caller that have not ended, by number
        self._calls: dict[int, _Call] = {}
        #: trials that the coordinator has assigned and the caller has not asked for yet
        self._assigned: deque[_Call] = deque()
        #: number of trials that may be under way
        self._n_wanted = 0
        self._is_closed = False
        self._session = SearchSession(
            SessionSetup(
                options=options,
                topology=topology,
                ranks=network.end(0),
                pump=lambda: False,
                context=ProcessContext(),
                script=script,
            )
        )
        try:
            self._run = self._session.begin()
        except BaseException:
            self._session.close()
            raise

    @property
    def ledger(self) -> Ledger:
        """Everything that has happened so far."""
        return self._run.directory.ledger

    @property
    def directory(self) -> Path | None:
        """Run directory; None if nothing is kept."""
        return self._run.directory.path if self._folder is None else None

    @property
    def is_over(self) -> bool:
        """True if no trial will begin any more, and none is under way."""
        return self._is_closed

    def ask(self) -> tuple[int, Point] | None:
        """Return number and point of the next trial; None if the search is over, or needs a value first."""
        if self.is_over:
            return None
        if not self._assigned and len(self._calls) == len(self._ranks):
            raise ConfigurationError(
                f"At most `n_parallel` trials may be under way. Received: a question with {len(self._calls)} under "
                "way; tell a value first, or raise `n_parallel`."
            )
        self._n_wanted = len(self._calls) + len(self._assigned) + (not self._assigned)
        self._turn()
        self._n_wanted = 0
        if not self._assigned:
            return None
        call = self._assigned.popleft()
        self._calls[call.order.trial] = call
        return call.order.trial, dict(call.order.point)

    def report(self, trial: int, epoch: int, value: float) -> bool:
        """Pass on a value that the trial has reached after `epoch`; return False if the trial is to stop."""
        call = self._call(trial)
        figure = returned_values(value)["value"]
        call.last_epoch = epoch
        reported = msg.EpochReported(
            assignment=call.order.assignment,
            epoch=epoch,
            metrics={"value": figure},
            figure_of_merit=figure,
            waits=call.order.waits_for_decision,
        )
        call.rank.send(0, reported)
        self._turn()
        return not call.stop_asked

    def tell(self, trial: int, value: object) -> None:
        """End a trial with its value, or its values by name; one that is not finite fails the trial."""
        call = self._call(trial)
        assignment = call.order.assignment
        train_s = time.monotonic() - call.began_s
        try:
            finished = finished_fold(
                self.options.comparison, assignment, value, n_epochs=call.last_epoch, train_s=train_s
            )
        except TrialError as error:
            self.fail(trial, str(error))
            return
        self._end(call, msg.FoldStopped(assignment=assignment) if call.stop_asked else finished)

    def fail(self, trial: int, reason: str) -> None:
        """End a trial that has failed."""
        call = self._call(trial)
        self._end(call, msg.FoldFailed(assignment=call.order.assignment, reason=reason))

    def close(self) -> None:
        """End this start: trials under way are left to the next one, which resumes the run."""
        if self._is_closed:
            return
        if not self._run.coordinator.finished_because:
            self._run.coordinator.preempt("the study was closed", _LONG_S)
            self._turn()  # which comes back here
            return
        self._is_closed = True
        try:
            self._session.end(self._run)
        finally:
            self._run.directory.close()
            self._session.close()
            if self._folder is not None:
                self._folder.cleanup()

    def _call(self, trial: int) -> _Call:
        call = self._calls.get(trial)
        if call is None or self._is_closed:
            raise ConfigurationError(
                f"A value must be for a trial that was asked for and has not ended. Received: trial {trial}."
            )
        return call

    def _end(self, call: _Call, message: msg.Message) -> None:
        del self._calls[call.order.trial]
        call.rank.send(0, message)
        self._turn()

    def _turn(self) -> None:
        """Let the coordinator do all that there is to do."""
        n_idle = 0
        # Twice: the search answers at the second look.
        while n_idle < 2 and not self._run.coordinator.finished_because:
            n_idle = 0 if self._session.turn(self._run) else n_idle + 1
            for rank in self._ranks:
                while (received := rank.poll()) is not None:
                    self._take(received.message, rank)
        if self._run.coordinator.finished_because:
            self.close()

    def _take(self, message: msg.Message, rank: Transport) -> None:
        if isinstance(message, msg.RunFold):
            self._assigned.append(_Call(order=message, rank=rank, began_s=time.monotonic()))
            rank.send(0, msg.FoldStarted(assignment=message.assignment))
        under_way = [*self._calls.values(), *self._assigned]
        call = next((c for c in under_way if c.order.assignment == getattr(message, "assignment", None)), None)
        if call is not None and isinstance(message, msg.StopFold):
            call.stop_asked = True
        elif call is not None and isinstance(message, msg.PreemptFold):
            rank.send(0, msg.FoldStopped(assignment=message.assignment))
