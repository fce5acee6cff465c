"""Who works on what, by the journal."""

from nnlo_opt.core.jobs.roster import Roster
from nnlo_opt.core.trials import events as ev
from tests.helpers.stories import START, assigned, finished


def began(term, job=1):
    return ev.TermBegan(time_s=1.0, term=term, job=job)


def joined(job, n_teams=2):
    return ev.JobJoined(time_s=1.0, job=job, host="node", n_ranks=4, n_teams=n_teams)


def left(job, **more):
    return ev.JobLeft(time_s=9.0, job=job, **more)


STORY = [START, began(1), joined(1), joined(2, n_teams=1), assigned(0, team=1), assigned(1, trial=1, team=2)]


def test_teams_are_numbered_on_through_all_jobs():
    roster = Roster(STORY)
    assert roster.of(1) == [0]
    assert roster.of(2) == [1]
    assert roster.here == {1, 2}
    assert (roster.jobs[1].teams, roster.jobs[2].teams) == (range(2), range(2, 3))


def test_a_report_counts_by_job_term_and_assignment_until_the_assignment_ends():
    roster = Roster([*STORY, began(2)])
    assert roster.holds(1, 1, 0)
    assert not roster.holds(2, 1, 0)
    assert not roster.holds(1, 2, 0)
    assert not roster.holds(1, 1, 7)
    roster.apply(finished(0))
    assert not roster.holds(1, 1, 0)


def test_a_number_that_an_overtaken_coordinator_used_too_is_another_assignment():
    """Term 1 assigned number 2 to job 1 after its journal was copied; term 2 assigns it to job 1, for another trial."""
    roster = Roster([*STORY, began(2), assigned(2, trial=2, team=0)])
    assert not roster.holds(1, 1, 2)
    assert roster.holds(1, 2, 2)


def test_a_fold_is_free_if_no_job_holds_it():
    roster = Roster(STORY)
    assert not roster.is_free(1, 0)
    assert roster.is_free(1, 1)
    roster.apply(ev.AssignmentLost(time_s=3.0, assignment=1))
    assert roster.is_free(1, 0)


def test_a_job_that_has_left_is_not_here():
    roster = Roster([*STORY, left(1), left(2, expelled=True)])
    assert (roster.here, roster.left) == (set(), {1, 2})
    assert [job.number for job in roster.jobs.values() if job.expelled] == [2]


def test_assignments_from_before_the_first_term_are_held_by_nobody():
    assert Roster([START, assigned(0), began(1), joined(1)]).held == {}


def test_a_search_that_goes_on_is_not_complete():
    complete = ev.RunCompleted(time_s=5.0, reason="done")
    assert Roster([*STORY, complete]).is_complete
    assert not Roster([*STORY, complete, START.replaced(time_s=6.0)]).is_complete
    assert Roster([*STORY, complete]).last_s == 5.0
