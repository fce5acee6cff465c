"""Jobs that share a run, as the ledger knows them."""

import pytest

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from tests.helpers.stories import SEARCH


def began(term, job=1, time_s=0.0):
    return [SEARCH.replaced(time_s=time_s), ev.TermBegan(time_s=time_s, term=term, job=job)]


def joined(job, n_ranks, time_s=1.0, **more):
    shape = {"n_blocks": 1, "n_teams": 1, "block_size": 1} | more
    return ev.JobJoined(time_s=time_s, job=job, host=f"node{job}", n_ranks=n_ranks, **shape)


def left(job, time_s=9.0, **more):
    return ev.JobLeft(time_s=time_s, job=job, **more)


THREE = [*began(1), joined(1, 5, n_blocks=2, n_teams=4, block_size=2), joined(2, 1), joined(4, 3, 2.0, block_size=2)]


def test_ranks_blocks_and_teams_are_numbered_on_in_the_order_of_joining():
    ledger = Ledger(THREE)
    first, single, last = ledger.jobs.values()
    assert (first.ranks, first.blocks, first.teams) == (range(5), range(1, 3), range(4))
    # A single process plays two ranks.
    assert (single.n_ranks, single.ranks, single.blocks, single.teams) == (1, range(5, 7), range(3, 4), range(4, 5))
    assert (last.number, last.ranks, last.blocks, last.joined_at_s) == (4, range(7, 10), range(4, 5), 2.0)


def test_a_run_has_the_blocks_and_ranks_of_the_jobs_that_are_here():
    ledger = Ledger(THREE)
    assert (ledger.n_blocks, ledger.n_ranks) == (4, 9)
    ledger.apply(left(1, reason="it was silent for too long", expelled=True))
    gone = ledger.jobs[1]
    assert (gone.is_here, gone.left_at_s, gone.expelled) == (False, 9.0, True)
    assert gone.reason == "it was silent for too long"
    assert [job.number for job in ledger.jobs_here] == [2, 4]
    assert (ledger.n_blocks, ledger.n_ranks) == (2, 4)
    ledger.apply(joined(5, 2, 10.0))
    assert ledger.jobs[5].ranks == range(10, 12), "numbers are not used again"


def test_a_job_stays_when_another_one_leads():
    ledger = Ledger([*THREE, *began(3, job=2, time_s=5.0)])
    assert (ledger.term, ledger.leader, ledger.sessions[-1].term) == (3, 2, 3)
    assert ledger.n_blocks == 4


def test_a_run_of_one_job_has_the_blocks_of_its_last_start():
    ledger = Ledger([SEARCH])
    assert (ledger.jobs, ledger.term, ledger.n_blocks, ledger.n_ranks) == ({}, 0, SEARCH.n_blocks, SEARCH.n_ranks)


@pytest.mark.parametrize("event", [joined(2, 1), left(3), left(1)])
def test_a_job_joins_and_leaves_once(event):
    ledger = Ledger([*THREE, left(1)])
    with pytest.raises(ProtocolError):
        ledger.apply(event)


def test_a_journal_from_before_the_shape_of_jobs_was_recorded_is_read():
    text = b'{"event":"JobJoined","time_s":1.0,"job":1,"host":"node","n_ranks":3,"n_teams":1}'
    event = ev.event_from_json(text)
    assert (event.n_blocks, event.block_size, event.n_masters, event.n_processes) == (1, 1, 1, 1)
