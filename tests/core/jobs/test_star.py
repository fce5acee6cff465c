"""The coordinator's transport through files, from end to end and alone."""

from collections import Counter
from random import Random
from types import SimpleNamespace

import numpy as np
import pytest

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.codec import from_json
from nnlo_opt.core.comm.loopback import LoopbackNetwork
from nnlo_opt.core.comm.run_messages import SharedFilesChanged
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.comm.transport import Received
from nnlo_opt.core.jobs.folder import FolderFiles
from nnlo_opt.core.jobs.job import Job
from nnlo_opt.core.jobs.lead import Report, Search
from nnlo_opt.core.jobs.relay import Relay
from nnlo_opt.core.jobs.roster import Roster
from nnlo_opt.core.jobs.star import Star
from nnlo_opt.core.trials import events as ev
from nnlo_opt.testing import transport_conformance as conformance
from tests.helpers.manual_clock import ManualClock
from tests.helpers.shared_disk import Client, Disk
from tests.helpers.steps import fold_finished


class Coordinating(Search):
    """Search that only passes messages."""

    star = None

    def opening(self, events, time_s):
        return [ev.RunStarted(time_s=time_s, unix_s=1e6, n_ranks=1, n_blocks=1, identity={})]

    def step(self, lead, reports):
        self.star = self.star or Star(lead)
        self.star.deliver(reports)


class Jobs:
    """Jobs in one process, stepped in turns, on the same files.

    Args:
        clock: their clock.
        files: number of a job -> files as it sees them.
        n_ends: number of masters; 1 in one job, or 4 in three, of which the last is a single process.
    """

    def __init__(self, clock, files, n_ends):
        self.clock, self.search = clock, Coordinating()
        self.jobs, self.relays, self.ends = [], [], {}
        first = 0
        for n_ranks in [2] if n_ends == 1 else [2, 3, 1]:
            network, topology = LoopbackNetwork(max(n_ranks, 2)), Topology.plan(n_ranks, 1)
            self.relays.append(Relay(network.end(0), topology.teams, clock, lambda: None))
            about = {"n_ranks": n_ranks, "n_teams": len(topology.teams)}
            self.jobs.append(Job(files(1 + len(self.jobs)), clock, self.relays[-1], self.search, **about))
            self.ends |= {first + rank: network.end(rank) for rank in range(1, network.size)}
            first += network.size
            while len(self.jobs) == 1 and self.search.star is None:
                self.turn()
        while len(self.jobs[0].lead.present) < len(self.jobs):
            self.turn()
        assert len(self.ends) == n_ends
        self.star = conformance.Star(self.search.star, self.ends, self.turn)

    def turn(self):
        if self.search.star is not None:
            self.search.star.flush()
        for job, relay in zip(self.jobs, self.relays, strict=False):
            job.step()
            relay.turn()
        self.clock.advance(1.0)


@pytest.fixture(params=[1, 4])
def n_ends(request):
    return request.param


@pytest.mark.parametrize("scenario", conformance.STAR_SCENARIOS, ids=lambda scenario: scenario.__name__)
class TestStars:
    """The suite of stars, on a folder, and on a disk that delays what others see."""

    def test_on_a_folder(self, tmp_path, scenario, n_ends):
        jobs = Jobs(ManualClock(1e6), lambda job: FolderFiles(tmp_path), n_ends)
        conformance.play_star(scenario, jobs.star)

    @pytest.mark.parametrize("seed", range(3))
    def test_on_a_late_disk(self, scenario, n_ends, seed):
        disk = Disk(Random(seed), 2.0, 5.0)
        clock = SimpleNamespace(monotonic_s=lambda: disk.now_s, unix_s=lambda: 1e6 + disk.now_s)

        def advance(seconds):
            disk.now_s += seconds

        clock.advance = advance
        jobs = Jobs(clock, lambda job: Client(disk, job, lambda name: False), n_ends)
        conformance.play_star(scenario, jobs.star)


# ---------------------------------------------------------------- the star alone


def joined(job, n_ranks):
    return ev.JobJoined(time_s=1.0, job=job, host="node", n_ranks=n_ranks, n_teams=1)


class FakeLead:
    """Term with three jobs, which have 3, 2 (a single process) and 5 ranks; job 2 does not follow it yet."""

    def __init__(self):
        self.roster = Roster([joined(1, 3), joined(4, 1), joined(2, 5)])
        self.present, self.appends = {1, 4}, []

    def send(self, job, *orders):
        self.appends.append((job, [(order.rank, from_json(order.message)) for order in orders]))


@pytest.fixture
def lead():
    return FakeLead()


@pytest.fixture
def star(lead):
    return Star(lead)


def go_on(number):
    return msg.GoOn(assignment=number)


def test_messages_to_one_job_are_written_at_once_with_its_own_numbers(lead, star):
    for rank, number in [(1, 10), (4, 11), (2, 12), (1, 13)]:
        star.send(rank, go_on(number))
    assert lead.appends == []
    star.flush()
    assert lead.appends == [(1, [(1, go_on(10)), (2, go_on(12)), (1, go_on(13))]), (4, [(1, go_on(11))])]
    star.flush()
    assert len(lead.appends) == 2


def test_a_job_that_does_not_follow_the_term_gets_no_orders(lead, star):
    star.send(6, go_on(1))
    star.send(1, go_on(2))
    star.flush()
    lead.present.add(2)
    star.flush()
    assert lead.appends == [(1, [(1, go_on(2))])]


def test_reports_come_from_ranks_numbered_through_all_jobs(star):
    reformed = msg.TeamReformed(alive=[2, 3], world_ranks=[2], n_masters=1, taken=4, goes_on=4)
    failed = msg.FoldFailed(assignment=5, reason="x", world_rank=1)
    star.deliver([Report(1, 1, fold_finished(3)), Report(2, 2, reformed), Report(4, 1, failed)])
    star.deliver([Report(4, 1, failed.replaced(world_rank=-1))])
    assert list(iter(star.poll, None)) == [
        Received(1, fold_finished(3), None),
        Received(7, reformed.replaced(alive=[7, 8], world_ranks=[7]), None),
        Received(4, failed.replaced(world_rank=4), None),
        Received(4, failed.replaced(world_rank=-1), None),
    ]


def test_a_rank_that_a_job_does_not_have_reports_nothing(star, caplog):
    star.deliver([Report(1, 3, fold_finished(3))])
    assert star.poll() is None
    assert "job 1" in caplog.text


def test_weights_do_not_travel(lead, star):
    with pytest.raises(ProtocolError, match="vector"):
        star.send(1, go_on(1), np.zeros(2, np.float32))
    star.flush()
    assert lead.appends == []


def test_a_star_grows_with_its_jobs(lead, star):
    assert star.size == 10
    with pytest.raises(ProtocolError, match="No job has rank 10"):
        star.send(10, go_on(1))
    lead.roster.apply(joined(7, 2))
    lead.present.add(7)
    star.deliver([])
    assert star.size == 12
    star.send(11, go_on(1))
    star.flush()
    assert lead.appends == [(7, [(1, go_on(1))])]


# ---------------------------------------------------------------- how often it looks


def test_logs_of_quiet_jobs_are_opened_once_a_second_while_another_one_talks():
    """With many jobs, opening each log ten times a second would take a core, or all requests of a file server."""
    disk, opened = Disk(Random(0), 0.0, 0.0), Counter()
    clock = ManualClock(1e6)

    def files(job):
        return Client(disk, job, lambda name: opened.update([name]) if job == 1 else None)

    jobs = Jobs(clock, files, 4)
    pauses = []
    for end in (None, jobs.ends[3]):
        for _ in range(25):
            jobs.turn()  # until nobody has said anything for a while
        opened.clear()
        until_s = clock.now_s + 10.0
        while clock.now_s < until_s:
            if end is not None:
                end.send(0, SharedFilesChanged(trial=0, names=[]))
            jobs.search.star.flush()
            for job, relay in zip(jobs.jobs, jobs.relays, strict=True):
                relay.turn()
                job.step()
            pauses.append(jobs.jobs[0].pause_s)
            clock.advance(pauses[-1])
        n_looks = {job: opened[f"read job-{job}.log"] for job in (2, 3)}
        assert n_looks[3] == pytest.approx(10, abs=1)
        assert n_looks[2] == pytest.approx(10 if end is None else 91, abs=2)
    assert pauses[:10] == pytest.approx([1.0] * 10)
    assert pauses[-10:] == pytest.approx([0.1] * 10)
