"""What the coordinator's view of jobs tells the search, and what the search may ask of it."""

import itertools
from types import SimpleNamespace

import pytest

from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.comm.run_messages import Shutdown
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.jobs.files import orders_name
from nnlo_opt.core.jobs.folder import FolderFiles
from nnlo_opt.core.jobs.job import Job
from nnlo_opt.core.jobs.lead import VANISHED, Search
from nnlo_opt.core.jobs.lines import Admitted, Ordered, encoded
from nnlo_opt.core.jobs.liveness import DEFAULT_TIMING
from nnlo_opt.core.jobs.relay import Relay
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.sharing import FOLDER
from tests.helpers.manual_clock import ManualClock
from tests.helpers.steps import fold_finished
from tests.helpers.stories import assigned, suggested


class Told(Search):
    """Search that notes what it is told, and gives the first fold to the job of a number."""

    def __init__(self, works=0):
        self.works, self.news, self.cause, self.refusal = works, [], None, ""
        self.lead = None

    def opening(self, events, time_s):
        return [ev.RunStarted(time_s=time_s, unix_s=1e6, n_ranks=1, n_blocks=1, identity={})]

    def step(self, lead, reports):
        self.lead = lead
        self.news += lead.take_news()
        if self.works in lead.present:
            team, self.works = lead.roster.jobs[self.works].teams[0], 0
            lead.record(suggested(0, time_s=lead.now_s), assigned(0, time_s=lead.now_s, team=team))
            order = msg.RunFold(assignment=0, trial=0, fold=0, attempt=1, point={"x": 0})
            lead.send(lead.roster.held[0].job, Ordered(rank=1, message=order.to_json()))

    def refuses(self, job):
        return self.refusal

    def cause_of(self, job, team):
        return self.cause


class Jobs:
    """Jobs of one rank each, in turns."""

    def __init__(self, folder, works=0):
        self.clock, self.files, self.works = ManualClock(1e6), FolderFiles(folder), works
        self.jobs, self.relays, self.ends, self.searches = [], [], [], []

    def join(self):
        network = LoopbackNetwork(2)
        self.relays.append(Relay(network.end(0), Topology.plan(1, 1).teams, self.clock, lambda: None))
        self.ends.append(network.end(1))
        self.searches.append(Told(self.works))
        self.jobs.append(Job(self.files, self.clock, self.relays[-1], self.searches[-1], host="node", block_size=1))
        return self.jobs[-1]

    def turn(self, n=1, asleep=()):
        for _ in range(n):
            for job, relay in zip(self.jobs, self.relays, strict=True):
                if job not in asleep:
                    job.step()
                    relay.turn()
            self.clock.advance(1.0)


def kinds(events):
    return [(type(event).__name__, event.job) for event in events]


@pytest.fixture
def two(tmp_path):
    """Two jobs, of which the second one has a fold."""
    jobs = Jobs(tmp_path, works=2)
    jobs.join()
    jobs.turn()
    jobs.join()
    jobs.turn(4)
    assert 2 in jobs.searches[0].lead.present
    return jobs


def test_what_it_records_by_itself_is_told_once_and_in_order(two):
    search = two.searches[0]
    assert [type(event) for event in search.lead.opening] == [ev.RunStarted, ev.TermBegan]
    assert kinds(search.news) == [("JobJoined", 1), ("JobJoined", 2)]
    assert search.news[1].host == "node"
    two.jobs[1].leave()
    two.turn(2)
    two.ends[1].send(0, msg.FoldStopped(assignment=0))
    two.turn(4)
    lost = search.news[-2]
    assert (lost.assignment, lost.reason, lost.counts) == (0, "its job let it go", False)
    assert search.news[-1] == ev.JobLeft(time_s=search.news[-1].time_s, job=2)
    assert not search.lead.take_news()


def test_the_lines_with_which_a_term_begins_are_in_the_order_of_their_times(tmp_path):
    """A pipe read "[-0.0 s] job 2 coordinates"."""
    jobs = Jobs(tmp_path)
    lead = jobs.join()
    passing = SimpleNamespace(monotonic_s=itertools.count(5.0).__next__, unix_s=lambda: 1e6)
    lead._clock = passing
    while lead.lead is None:
        lead.step()
    start, began = lead.lead.opening
    assert start.time_s == began.time_s


@pytest.mark.parametrize("cause", [None, ("its node has crashed", False)])
def test_the_search_knows_why_a_job_is_silent(two, cause):
    search = two.searches[0]
    search.cause, cause = cause, cause or VANISHED
    two.turn(int(DEFAULT_TIMING.limit_s) + 30, asleep=two.jobs[1:])
    *_, lost, left = search.news
    assert (lost.assignment, lost.reason, lost.counts) == (0, *cause)
    assert (left.job, left.expelled) == (2, True)
    two.turn(3)
    assert two.jobs[1].number == 3, "it has joined anew"


def test_a_goodbye_does_not_excuse_a_trial_that_has_killed_a_rank(two):
    """`mpirun` ends the other ranks of the job, and so rank 0 says goodbye."""
    search = two.searches[0]
    search.cause = "rank 3 on node: its process died", True
    two.jobs[1].leave(at_once=True)
    two.turn(4)
    *_, lost, left = search.news
    assert (lost.assignment, lost.reason, lost.counts) == (0, *search.cause)
    assert (left.job, left.expelled) == (2, False)


def test_a_job_that_is_expelled_for_a_reason_ends(two):
    search = two.searches[0]
    search.lead.expel(2, "block 2 is stuck", counts=False)
    search.lead.expel(2, "twice", counts=True)
    two.turn(2)
    *_, lost, left = search.news
    assert (lost.assignment, lost.reason, lost.counts) == (0, "block 2 is stuck", False)
    assert (left.job, left.reason, left.expelled) == (2, "block 2 is stuck", True)
    assert (two.jobs[1].is_over, two.jobs[1].expelled_because) == (True, "block 2 is stuck")


def test_a_coordinator_that_expels_its_own_job_hands_over_at_once(two):
    two.searches[0].lead.expel(1, "block 1 is stuck", counts=False)
    two.turn(6)
    assert two.jobs[0].is_over
    assert two.jobs[1].lead is not None
    assert ("JobLeft", 1) in kinds(two.searches[0].news)


def test_a_job_that_does_not_fit_is_told_so_and_ends(tmp_path):
    jobs = Jobs(tmp_path)
    jobs.join()
    jobs.turn(4)
    jobs.searches[0].refusal = "its teams are others"
    other = jobs.join()
    jobs.turn(4)
    assert (other.is_over, other.expelled_because) == (True, "its teams are others")
    assert kinds(jobs.searches[0].news) == [("JobJoined", 1)]
    assert jobs.searches[0].lead.present == {1}


@pytest.mark.parametrize("leads", [False, True])
def test_a_job_that_may_not_obey_an_order_says_goodbye_and_the_search_goes_on(two, leads):
    """Anyone who can write to the folder may give an order, and a coordinator of another version others."""
    number = 1 if leads else 2
    forged = Ordered(rank=1, message=Shutdown(exit_code=0).to_json())
    two.searches[0].lead._order(number, forged)
    two.turn(3)
    if not leads:
        assert not two.jobs[1].is_over, "its fold goes on to a checkpoint or a result"
        two.ends[1].send(0, fold_finished(0))
    two.turn(8)
    refused, other = two.jobs if leads else two.jobs[::-1]
    assert refused.is_over
    assert refused.refused_because == "This job does not accept Shutdown for rank 1."
    assert refused.expelled_because == ""
    assert not other.is_over
    assert other.lead.roster.left == {number}
    assert not other.lead.roster.jobs[number].expelled


@pytest.mark.parametrize("damage", [b"a line\n", b"\0\0\0", b'{"seq":'], ids=["no order", "NUL bytes", "half a line"])
def test_a_job_whose_orders_stay_unreadable_says_goodbye(two, damage):
    """Its coordinator believes that it was obeyed, and would wait for ever."""
    two.files.append(orders_name(2, 1), damage)
    two.turn(int(DEFAULT_TIMING.limit_s))
    two.jobs[1].step()
    assert two.jobs[1].refused_because == ""
    two.turn(5)
    two.ends[1].send(0, fold_finished(0))
    two.turn(8)
    assert two.jobs[1].is_over
    assert two.jobs[1].refused_because == "line 3 of orders-2-1.log has been damaged or unknown for 120 s."
    assert two.jobs[0].lead.roster.left == {2}


def test_a_coordinator_whose_own_orders_stay_unreadable_hands_over(two):
    two.files.append(orders_name(1, 1), b"no order\n")
    two.turn(int(DEFAULT_TIMING.limit_s) + 8)
    assert two.jobs[0].is_over
    assert two.jobs[0].refused_because.endswith("of orders-1-1.log has been damaged or unknown for 120 s.")
    assert two.jobs[1].lead.roster.left == {1}


def test_an_order_that_is_late_is_obeyed(two, tmp_path):
    """Bytes may be seen long after the newline that ends them."""
    path = tmp_path / FOLDER / orders_name(2, 1)
    before, line = path.read_bytes(), encoded(path.name, 2, Admitted(first_rank=7, first_team=5))
    for seen in (bytes(len(line) - 1) + b"\n", line):
        path.write_bytes(before + seen)
        two.turn(int(DEFAULT_TIMING.limit_s) - 5)
    assert two.relays[1].numbers == (7, 5)
    two.turn(int(DEFAULT_TIMING.limit_s))
    assert two.jobs[1].refused_because == ""
