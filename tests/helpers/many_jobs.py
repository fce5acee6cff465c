"""Jobs of one search in one process, on a disk that delays what they see; they are killed, stopped, and come and go.

Each job runs the code of the product in its own thread, of which one at a time has its turn. Before each of its
operations on files a job may be killed or stopped, for any time, so all interleavings of operations can be had.
"""

import math
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from io import BytesIO
from random import Random

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.codec import from_json
from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.jobs.files import begun_name, journal_name, log_name, term_name
from nnlo_opt.core.jobs.job import Job
from nnlo_opt.core.jobs.lead import Search
from nnlo_opt.core.jobs.lines import JOB_LINES, Follows, Reported
from nnlo_opt.core.jobs.liveness import Timing
from nnlo_opt.core.jobs.relay import Relay
from nnlo_opt.core.jobs.roster import Roster
from nnlo_opt.core.jobs.star import Star
from nnlo_opt.core.jobs.succession import BEGUN
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.journal import read_journal
from nnlo_opt.core.trials.ledger import Ledger
from tests.helpers.shared_disk import Client, Disk, Violation
from tests.helpers.steps import fold_finished
from tests.helpers.stories import completed, finished
from tests.helpers.whole_search import WholeSearch

TIMING = Timing(beat_s=2.0, limit_s=8.0, settle_s=2.0)
#: seconds that a fold takes
WORK_S = 3.0
#: strikes: stopped for less and for more than the limit
WHAT = ("kill", "tear", 2, 15)
#: longest that a search may take after the last disturbance, seconds
PATIENCE_S = 120


class Killed(BaseException):
    """Ends the thread of a job."""


@dataclass(frozen=True)
class Fate:
    """What happens to one job."""

    starts_s: int = 0
    #: second at which it is asked to leave; None for never
    leaves_s: int | None = None
    #: number of an operation on files -> what happens before it: seconds to stand still, or "kill", or "tear" (it is
    #: killed within the operation)
    strikes: dict[int, int | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """One run of the model."""

    fates: tuple[Fate, ...]
    seed: int = 0
    #: longest delays of bytes and of names that others see, seconds
    late_s: float = 2.0
    names_late_s: float = 5.0
    n_trials: int = 3
    #: True for the coordinator of the product, which does not write its term into points
    is_whole: bool = False


def _turn():
    """A lock that is taken: who releases it hands over the turn, in a fifth of a semaphore's time."""
    turn = threading.Lock()
    turn.acquire()
    return turn


class CheckedRelay(Relay):
    """Relay that checks which orders are obeyed."""

    #: term of the last order
    term = 0

    def take(self, term, rank, message):
        if isinstance(message, msg.RunFold) and message.point.get("term", term) != term:
            raise Violation(f"an order of term {message.point['term']} was obeyed in term {term}")
        self.term = term
        try:
            super().take(term, rank, message)
        except ProtocolError as error:
            raise Violation(f"a job got an order that it may not obey: {error}") from error


class Team:
    """The only team of a job, which is a single process: its master and the relay."""

    def __init__(self, process):
        self._process, network = process, LoopbackNetwork(2)
        self.relay = CheckedRelay(network.end(0), Topology.plan(1, 1).teams, process, lambda: None)
        self._orders = network.end(1)
        #: (order, second at which it is done, number among all trainings)
        self._work = None

    def turn(self):
        self.relay.turn()
        while (received := self._orders.poll()) is not None:
            if isinstance(received.message, msg.RunFold):
                self._begin(received.message)
            elif isinstance(received.message, msg.StopFold | msg.PreemptFold) and self._work is not None:
                self._end(msg.FoldStopped(assignment=received.message.assignment))
        if self._work is not None and self._process.world.disk.now_s >= self._work[1]:
            self._end(fold_finished(self._work[0].assignment, float(self._work[2])))
        self.relay.turn()

    def _begin(self, order):
        process, world, term = self._process, self._process.world, self.relay.term
        if any(other[1:3] == (term, order.assignment) for other in world.trainings):
            raise Violation(f"assignment {order.assignment} of term {term} is trained twice, in one folder")
        world.trainings.append((process.job.number, term, order.assignment, order.trial))
        self._work = order, world.disk.now_s + WORK_S, len(world.trainings) - 1

    def _end(self, message):
        self._orders.send(0, message)
        self._work = None


class FewTrials(Search):
    """Coordinator of a search with a few trials of one fold."""

    def __init__(self, n_trials):
        self._n_trials = n_trials
        self._star = None

    def asks_for_more(self, is_complete):
        return False

    def opening(self, events, time_s):
        started = ev.RunStarted(time_s=time_s, unix_s=1e6, n_ranks=1, n_blocks=1, identity={})
        n_before = sum(isinstance(event, ev.TrialSuggested) for event in events)
        new = range(n_before, self._n_trials)
        ended = {e.trial for e in events if isinstance(e, ev.TrialCompleted)}
        trials = {e.assignment: e.trial for e in events if isinstance(e, ev.FoldAssigned)}
        figures = {trials[e.assignment]: e.figure_of_merit for e in events if isinstance(e, ev.AssignmentFinished)}
        self._star, self._finished = None, set(figures)
        self._attempts = Counter(e.trial for e in events if isinstance(e, ev.FoldAssigned))
        missing = [completed(trial, figure, time_s) for trial, figure in figures.items() if trial not in ended]
        return [started, *missing, *(ev.TrialSuggested(time_s=time_s, trial=trial, point={}) for trial in new)]

    def step(self, lead, reports):
        self._star = self._star or Star(lead)
        self._star.deliver(reports)
        while (received := self._star.poll()) is not None:
            number, now_s = received.message.assignment, lead.now_s
            held = lead.roster.held.get(number)
            if held is None:
                continue
            if isinstance(received.message, msg.FoldStopped):
                lead.record(ev.AssignmentPreempted(time_s=now_s, assignment=number))
                continue
            self._finished.add(held.trial)
            figure = received.message.figure_of_merit
            lead.record(finished(number, figure, now_s), completed(held.trial, figure, now_s))
        if len(self._finished) == self._n_trials:
            if not lead.roster.is_complete:
                lead.record(ev.RunCompleted(time_s=lead.now_s, reason="done"))
            lead.end()
            return
        for job in sorted(lead.present):
            trials = [t for t in range(self._n_trials) if t not in self._finished and lead.roster.is_free(t, 0)]
            if trials and not lead.roster.of(job):
                self._assign(lead, job, trials[0])
        self._star.flush()

    def _assign(self, lead, job, trial):
        number, team = self._attempts.total(), lead.roster.jobs[job].teams[0]
        self._attempts[trial] += 1
        what = {"assignment": number, "trial": trial, "fold": 0, "attempt": self._attempts[trial]}
        lead.record(ev.FoldAssigned(time_s=lead.now_s, block=1, team=team, n_ranks=1, **what))
        self._star.send(lead.roster.jobs[job].ranks[1], msg.RunFold(point={"term": lead.term}, **what))


class Process(threading.Thread):
    """One job, and its clocks, which agree with no other's."""

    def __init__(self, world, number, fate):
        super().__init__(daemon=True)
        self.world, self.number, self.fate = world, number, fate
        self.turn = _turn()
        self.stopped_until_s = float(fate.starts_s)
        self.n_operations = 0
        #: names of its operations
        self.story = []
        self.is_over = self.is_dying = self.was_killed = False
        self.job = None

    def monotonic_s(self):
        return self.world.disk.now_s + 1000.0 * self.number

    def unix_s(self):
        return 1e6 + self.world.disk.now_s - 500.0 * self.number

    def run(self):
        self.turn.acquire()
        try:
            team, files = Team(self), Client(self.world.disk, self.number, self.before)
            n_trials = self.world.plan.n_trials
            search = WholeSearch(n_trials, self) if self.world.plan.is_whole else FewTrials(n_trials)
            self.check_alive()
            self.job = Job(files, self, team.relay, search, timing=TIMING)
            while self.job.step():
                team.turn()
                self.give_turn()
                team.turn()
                if self.fate.leaves_s is not None and self.world.disk.now_s >= self.fate.leaves_s:
                    self.job.leave()
        except Killed:
            self.was_killed = True
        except BaseException as error:
            self.world.errors.append(error)
        self.is_over = True
        self.world.turn.release()

    @property
    def has_stayed(self):
        """True if it ended because the search was over."""
        return not self.was_killed and self.fate.leaves_s is None

    def check_alive(self):
        if self.is_dying:
            raise Killed

    def give_turn(self):
        self.world.turn.release()
        self.turn.acquire()
        self.check_alive()

    def before(self, name):
        """Suffer what happens before an operation on files; return True if it is killed within it."""
        if name == "die":
            raise Killed
        strike = self.fate.strikes.get(self.n_operations)
        self.n_operations += 1
        self.story.append(name)
        if strike == "kill":
            raise Killed
        if isinstance(strike, int):
            self.stopped_until_s = self.world.disk.now_s + strike
            self.give_turn()
        if name.startswith("create term-"):
            self.world.note_term(int(name.removeprefix("create term-")))
        return strike == "tear"


class World:
    """Runs a plan.

    Args:
        plan: what happens.
    """

    def __init__(self, plan):
        self.plan = plan
        self.rng = Random(plan.seed)
        self.disk = Disk(self.rng, plan.late_s, plan.names_late_s)
        self.turn = _turn()
        self.processes = [Process(self, number, fate) for number, fate in enumerate(plan.fates)]
        #: (job, term, assignment, trial) of all that was trained
        self.trainings = []
        self.errors = []
        #: term -> content of the journal of the term before when the file of the term was created
        self.before_term = {}

    def run(self):
        """Run the plan to its end, and check everything; raise Violation or another error."""
        for process in self.processes:
            process.start()
        try:
            self._run()
        finally:
            for process in self.processes:
                if not process.is_over:
                    process.is_dying = True
                    process.turn.release()
                    self.turn.acquire()
                process.join()
        if self.errors:
            raise self.errors[0]
        self.check()
        return self

    def _run(self):
        last_s = max(fate.starts_s for fate in self.plan.fates)
        stopped = [what for fate in self.plan.fates for what in fate.strikes.values() if isinstance(what, int)]
        until_s = PATIENCE_S + last_s + sum(stopped)
        while not self.errors and not all(process.is_over for process in self.processes):
            if self.disk.now_s > until_s:
                raise Violation("the search goes on for ever")
            order = list(self.processes)
            self.rng.shuffle(order)
            for process in order:
                if not process.is_over and self.disk.now_s >= process.stopped_until_s:
                    process.turn.release()
                    self.turn.acquire()
            self.disk.now_s += 1.0

    def note_term(self, term):
        if term_name(term) not in self.disk.files and (truth := self.truth())[0] == term - 1:
            self.before_term[term] = truth[1]

    def truth(self):
        """Return the greatest begun term and its journal."""
        verdicts = {name: file.data for name, file in self.disk.files.items()}
        begun = [t for t in range(1, len(verdicts)) if verdicts.get(begun_name(t)) == BEGUN]
        return (begun[-1], self.disk.files[journal_name(begun[-1])].data) if begun else (0, b"")

    def check(self):
        """Check what has to hold in the end."""
        if all(process.was_killed for process in self.processes):
            return
        term, data = self.truth()
        content = read_journal(BytesIO(data), "journal")
        events = content.events
        for later, before in self.before_term.items():
            sound = read_journal(BytesIO(before), "journal").n_sound
            if not data.startswith(before[:sound]):
                raise Violation(f"lines of the journal before term {later} are lost")
        ledger = Ledger(events)
        if not ledger.complete and any(process.has_stayed for process in self.processes):
            raise Violation("the search is not complete")
        _, published, process, _ = self.disk.published[-1]
        # A job that was stopped right before it published a journal, or ended right after it, cannot correct that.
        is_fine = self.processes[process].has_stayed and not self.processes[process].fate.strikes
        if ledger.complete and published != journal_name(term) and is_fine:
            raise Violation("commands read an old journal")
        self._check_events(data[: content.n_sound].splitlines(), events)

    def _check_events(self, lines, events):
        roster, n_finished, time_s = Roster(), Counter(), 0.0
        for line, event in zip(lines, events, strict=True):
            match event:
                case ev.FoldAssigned() if not roster.is_free(event.trial, event.fold):
                    raise Violation(f"trial {event.trial} is on two teams that both may report")
                case ev.AssignmentFinished():
                    held = roster.held[event.assignment]
                    n_finished[held.trial] += 1
                    training = self.trainings[int(event.figure_of_merit)]
                    if training != (held.job, held.term, event.assignment, held.trial):
                        raise Violation(f"a result of assignment {event.assignment} is another one's")
                case ev.AssignmentLost():
                    held = roster.held[event.assignment]
                    # An expulsion may miss what was not seen when the log was read.
                    read_s = self.disk.read_before[line].get(log_name(held.job), math.inf) - self.plan.late_s
                    self._check_lost(event.assignment, held, read_s if event.counts else math.inf)
                case ev.TermBegan() if event.time_s < time_s:
                    raise Violation("time goes back")
            if self.plan.is_whole and event.time_s < time_s - 1e-6:
                raise Violation("time goes back")
            roster.apply(event)
            time_s = event.time_s
        if any(n > 1 for n in n_finished.values()):
            raise Violation("a result is counted twice")

    def _check_lost(self, assignment, held, until_s):
        """Raise if an assignment is lost whose result its job had written before `until_s`."""
        follows = 0
        for line, at_s in self.disk.lines(log_name(held.job), JOB_LINES):
            follows = line.term if isinstance(line, Follows) else follows
            if isinstance(line, Reported) and follows == held.term and at_s < until_s:
                message = from_json(line.message)
                if isinstance(message, msg.FoldFinished) and message.assignment == assignment:
                    raise Violation(f"the result of assignment {assignment} is lost")


def strike(plan, job, operation, what):
    """Return the plan with one more strike."""
    fates = list(plan.fates)
    fates[job] = replace(fates[job], strikes=fates[job].strikes | {operation: what})
    return replace(plan, fates=tuple(fates))


def each_strike(plan, every=1):
    """Yield the plan with each strike at each operation of a run without it; `every`: at every such operation."""
    for process in World(plan).run().processes:
        for operation in range(plan.seed % every, process.n_operations, every):
            for what in WHAT:
                yield strike(plan, process.number, operation, what)


def any_plan(seed):
    """Return a plan of two to four jobs that are struck, come and leave at random; one of them lives on."""
    rng = Random(seed)
    fates = []
    for _ in range(rng.choice([1, 2, 2, 3])):
        last = rng.choice([60, 150])
        strikes = {rng.randrange(last): rng.choice(["kill", "tear", 1, 2, 3, 9, 12, 15, 25, 40]) for _ in range(3)}
        strikes = dict(list(strikes.items())[: rng.randrange(4)])
        fates.append(Fate(rng.choice([0, 0, 1, 5, 12, 25]), rng.choice([None, None, None, 4, 9, 20]), strikes))
    stopped = {operation: what for operation, what in fates[0].strikes.items() if isinstance(what, int)}
    fates.insert(rng.randrange(len(fates) + 1), Fate(rng.choice([0, 3, 20]), strikes=stopped))
    return Plan(tuple(fates), seed, rng.choice([0.0, 1.0, 2.0]), rng.choice([0.0, 2.0, 5.0]))
