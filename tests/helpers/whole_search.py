"""The coordinator of the product in a job that leads, for the model in `many_jobs`: what a driver puts together."""

from nnlo_opt.app.run.jobs.leading import TermClock
from nnlo_opt.core.coordinator.coordinator import Coordinator, CoordinatorSetup
from nnlo_opt.core.coordinator.instructions import JobsChanged, SearchPlan
from nnlo_opt.core.coordinator.shared_state import SharedCoordinatorState, why_refused
from nnlo_opt.core.jobs.lead import Search
from nnlo_opt.core.jobs.star import Star
from nnlo_opt.core.search.base import Suggestion
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger


class Points:
    """Search algorithm that suggests the number of the trial."""

    def __init__(self):
        self._asked = None

    def record(self, trials):
        pass

    def request_suggestion(self, request):
        self._asked = request

    def poll(self):
        number, self._asked = self._asked, None
        return None if number is None else Suggestion(point={"n": number})


class OfLead:
    """Journal and jobs of a term, for its coordinator."""

    path = "journal.jsonl"

    def __init__(self, lead):
        self._lead = lead
        self._present = frozenset()

    def append(self, events, *, durable=True):
        self._lead.record(*events)

    def jobs(self):
        news, present = tuple(self._lead.take_news()), frozenset(self._lead.present)
        if not news and present == self._present:
            return None
        self._present = present
        return JobsChanged(recorded=news, present=present)

    def expel(self, job, reason):
        self._lead.expel(job, reason, counts=False)


class WholeSearch(Search):
    """Search for so many trials."""

    def __init__(self, n_trials, clock):
        self._clock = clock
        self._plan = SearchPlan(num_iterations=n_trials, max_attempts=2)
        self._lead = None

    def refuses(self, job):
        return why_refused(job, self._plan.n_fold)

    def opening(self, events, time_s):
        self._seen, self._ledger = [*events], Ledger(events)
        return [ev.RunStarted(time_s=time_s, unix_s=1e6 + time_s, n_ranks=1, n_blocks=1, identity={})]

    def step(self, lead, reports):
        if lead is not self._lead:
            self._begin(lead)
        self._star.deliver(reports)
        while self._coordinator.step():
            pass
        self._star.flush()
        if self._coordinator.finished_because:
            if not lead.roster.is_complete:
                self._coordinator.complete()
            lead.end()
        assert vars(Ledger(self._seen)) == vars(self._ledger), "the journal tells another story than the ledger"

    def observe(self, event, ledger):
        self._seen.append(event)

    def _begin(self, lead):
        self._lead, self._star = lead, Star(lead)
        self._seen += lead.opening
        for event in lead.opening:
            self._ledger.apply(event)
        of_lead = OfLead(lead)
        self._coordinator = Coordinator(
            CoordinatorSetup(
                state=SharedCoordinatorState(self._plan, self._ledger),
                journal=of_lead,
                ranks=self._star,
                search=Points(),
                clock=TermClock(self._clock, lead, self._ledger),
                observers=[self],
                jobs=of_lead.jobs,
                expel=of_lead.expel,
            )
        )
        self._coordinator.begin()
