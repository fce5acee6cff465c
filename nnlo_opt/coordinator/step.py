"""The step under way of the coordinator's decisions: what they find, and what they make."""

from nnlo_opt.comm import messages as msg
from nnlo_opt.coordinator.instructions import Append, Instruction, SearchPlan, Send
from nnlo_opt.coordinator.policy import Policy
from nnlo_opt.coordinator.records import told
from nnlo_opt.coordinator.roster import Roster
from nnlo_opt.trials import events as ev
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.trial import Trial

#: events that justify no message: losing them in a crash loses nothing, so nobody waits for the disk
_NEWS: tuple[type, ...] = (ev.FoldBegan, ev.EpochEnded)


class Step:
    """Collects events and instructions. Ledger and policy know an event at once, and so does the next decision."""

    def __init__(self, plan: SearchPlan, ledger: Ledger, roster: Roster) -> None:
        self._plan = plan
        self._roster = roster
        #: all trials; changed only by the events recorded here
        self.ledger = ledger
        #: which trials are worth going on with; knows every event that the ledger knows
        self.policy = Policy(plan, ledger)
        #: when this step is made; seconds since the first start
        self.now_s = 0.0
        #: what this step has made so far
        self._events: list[ev.Event] = []
        self._instructions: list[Instruction] = []

    def begin(self, now_s: float) -> None:
        """The next step."""
        self.now_s, self._events, self._instructions = now_s, [], []

    def record(self, event: ev.Event) -> None:
        """Write the event down; ProtocolError where the ledger does not take it."""
        self.ledger.apply(event)
        self.policy.take(event)
        self._events.append(event)

    def send(self, team_index: int, message: msg.Message) -> None:
        """Send to the master of a team, whoever that is now."""
        rank = self._roster.team(team_index).master_rank
        self._instructions.append(Send(team=team_index, rank=rank, message=message))

    def tell(self, trial: Trial) -> None:
        """Tell the search how a trial stands."""
        self._instructions.append(told(trial, self._plan))

    def instruct(self, instruction: Instruction) -> None:
        """Any other instruction."""
        self._instructions.append(instruction)

    def result(self) -> list[Instruction]:
        """What is to be carried out: all events of the step in one write ahead of everything else."""
        if not self._events:
            return self._instructions
        durable = any(not isinstance(event, _NEWS) for event in self._events)
        return [Append(events=tuple(self._events), durable=durable), *self._instructions]
