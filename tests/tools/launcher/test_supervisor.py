import copy

import pytest

from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.tools.launcher.supervisor import MAX_IDLE, MAX_UNBORN, PAUSES_S, Ended, Standing, Supervisor
from tests.helpers.told_runs import Story

NOTHING = Standing()
FIRST = Standing(start=(5.0, 1), n_lasting=4)
#: starts that could not open a run which was under way; starts in which no rank has run
ABSENT = Ended(before=FIRST, after=FIRST, exit_code=250)
UNBORN = Ended(before=NOTHING, after=NOTHING, exit_code=1, has_begun=False)


def standing(n_starts=1, n_lasting=4, **more):
    return Standing(start=(5.0, n_starts), n_lasting=n_lasting, **more)


def judge(before, after, exit_code=1, ordered=False, max_restarts=10):
    supervisor = Supervisor(max_restarts=max_restarts)
    return supervisor.judge(Ended(before=before, after=after, exit_code=exit_code, ordered=ordered)).exit_code


@pytest.mark.parametrize(
    ("before", "after", "exit_code", "ordered", "expected"),
    [
        # complete, whatever mpirun says, and also where it was told to end
        (NOTHING, standing(complete=True, has_result=True), 0, False, 0),
        (FIRST, standing(2, 9, complete=True, has_result=True), 137, False, 0),
        (FIRST, standing(2, 9, complete=True, has_result=True), 75, True, 0),
        (NOTHING, standing(complete=True), 1, False, 1),
        # the journal was complete before, and this start has not opened it
        (standing(complete=True, has_result=True), standing(complete=True, has_result=True), 2, False, 2),
        (standing(complete=True, has_result=True), standing(complete=True, has_result=True), 1, False, None),
        # preempted: by the launcher, by the exit code, by the journal under ULFM's 0
        (NOTHING, NOTHING, -10, True, 75),
        (NOTHING, NOTHING, 138, True, 75),
        (NOTHING, NOTHING, 75, False, 75),
        (FIRST, standing(2, preempted=True), 0, False, 75),
        (standing(preempted=True), standing(preempted=True), 1, False, None),
        # a wrong request is not asked again
        (NOTHING, NOTHING, 2, False, 2),
        (FIRST, standing(2), 2, False, 2),
        # a crash, under a code of any kind
        (NOTHING, FIRST, 137, False, None),
        (NOTHING, FIRST, 0, False, None),
        (NOTHING, FIRST, -9, False, None),
    ],
)
def test_a_start_is_judged_by_the_journal(before, after, exit_code, ordered, expected):
    assert judge(before, after, exit_code, ordered) == expected


def starts(supervisor, *standings, before=NOTHING):
    """Exit codes of the verdicts over crash after crash."""
    codes = []
    for after in standings:
        verdict = supervisor.judge(Ended(before=before, after=after, exit_code=1))
        codes.append(verdict.exit_code)
        before = after
    return codes


def test_two_starts_in_a_row_that_add_nothing_are_the_last():
    assert MAX_IDLE == 2
    assert starts(Supervisor(max_restarts=10), NOTHING, NOTHING) == [None, 1]
    # A start, its assignments and their loss are in the journal each time, and are worth nothing.
    assert starts(Supervisor(max_restarts=10), standing(1, 3), standing(2, 3), standing(3, 3)) == [None, None, 1]
    growing = Supervisor(max_restarts=10)
    assert starts(growing, standing(1, 0), standing(2, 3), standing(3, 3), standing(4, 4)) == [None] * 4
    assert growing.n_idle == 0


def test_a_fold_that_dies_each_time_is_tried_until_it_fails_and_the_run_has_grown_by_that():
    supervisor = Supervisor(max_restarts=10, max_attempts=3)
    # In the fourth start the coordinator writes down that the trial has failed.
    dying = [standing(i, 0, n_assigned=i) for i in (1, 2, 3)]
    assert starts(supervisor, *dying, standing(4, 1, n_assigned=5)) == [None] * 4
    assert supervisor.n_idle == 0
    supervisor = Supervisor(max_restarts=10, max_attempts=3)
    assert starts(supervisor, *dying, standing(4, 0, n_assigned=4)) == [None, None, None, 1]


def test_a_network_or_node_that_is_gone_for_a_while_is_waited_for():
    supervisor = Supervisor(max_restarts=10)
    # The run was under way: what keeps further starts from opening it may pass.
    assert starts(supervisor, FIRST, before=NOTHING) == [None]
    verdicts = [supervisor.judge(ABSENT) for _ in range(len(PAUSES_S) + 1)]
    assert [verdict.exit_code for verdict in verdicts] == [None] * len(PAUSES_S) + [1]
    assert [verdict.pause_s for verdict in verdicts[:-1]] == list(PAUSES_S)
    assert "after 5 s" in verdicts[0].sentence
    assert "starts has opened the run: giving up" in verdicts[-1].sentence


def test_a_start_that_opens_the_run_again_ends_the_wait():
    supervisor = Supervisor(max_restarts=20)
    assert starts(supervisor, FIRST, before=NOTHING) == [None]
    assert [supervisor.judge(ABSENT).pause_s for _ in range(2)] == list(PAUSES_S[:2])
    grown = supervisor.judge(Ended(before=FIRST, after=standing(2, 9), exit_code=1))
    assert (grown.exit_code, grown.pause_s) == (None, 0.0)
    assert supervisor.judge(Ended(before=standing(2, 9), after=standing(2, 9), exit_code=1)).pause_s == PAUSES_S[0]


@pytest.mark.parametrize("before", [NOTHING, FIRST])
def test_starts_without_any_rank_are_made_up_for_at_once_and_count_for_nothing_else(before):
    supervisor = Supervisor(max_restarts=0, has_run=before is FIRST)
    unborn = UNBORN.replaced(before=before, after=before)
    for n in (1, 2, 3):
        verdict = supervisor.judge(unborn)
        assert (verdict.exit_code, verdict.is_same, verdict.pause_s) == (None, True, 0.0)
        assert f"before any rank had begun: once more ({n} of at most 3 times in a row)" in verdict.sentence
    assert (supervisor.n_idle, supervisor.n_absent, supervisor.n_restarts) == (0, 0, 0)
    assert supervisor.judge(unborn).exit_code == 1, "as any other start, of which there may be no more"


def test_where_mpirun_never_starts_a_rank_the_search_ends():
    supervisor = Supervisor(max_restarts=10)
    verdicts = [supervisor.judge(UNBORN) for _ in range(MAX_UNBORN + MAX_IDLE)]
    assert [verdict.is_same for verdict in verdicts] == [True] * MAX_UNBORN + [False] * MAX_IDLE
    assert [verdict.exit_code for verdict in verdicts] == [None] * (MAX_UNBORN + MAX_IDLE - 1) + [1]


def test_starts_without_ranks_are_counted_from_zero_after_one_with_ranks():
    supervisor = Supervisor(max_restarts=10)
    assert [supervisor.judge(UNBORN).is_same for _ in range(MAX_UNBORN)] == [True] * MAX_UNBORN
    assert not supervisor.judge(UNBORN.replaced(has_begun=True)).is_same
    assert supervisor.judge(UNBORN).is_same
    assert supervisor.judge(UNBORN.replaced(exit_code=2)).exit_code == 2, "a wrong request is none the less"


def test_a_run_that_was_opened_had_ranks_wherever_they_were():
    supervisor = Supervisor(max_restarts=10)
    assert not supervisor.judge(Ended(before=NOTHING, after=FIRST, exit_code=1, has_begun=False)).is_same


def test_a_start_that_did_nothing_before_is_not_counted_against_the_wait():
    supervisor = Supervisor(max_restarts=10, max_attempts=3)
    dying = [standing(i, 0, n_assigned=i) for i in (1, 2)]
    assert starts(supervisor, *dying) == [None, None]
    assert supervisor.judge(Ended(before=dying[1], after=dying[1], exit_code=250)).pause_s == PAUSES_S[0]


def test_a_run_that_was_replaced_has_grown_however_short_it_is():
    supervisor = Supervisor(max_restarts=10)
    replaced = Standing(start=(9.0, 1), n_lasting=1)
    assert starts(supervisor, replaced, before=standing(3, 50)) == [None]
    assert supervisor.n_idle == 0


@pytest.mark.parametrize("max_restarts", [0, 1, 3])
def test_there_are_no_more_restarts_than_may_be(max_restarts):
    supervisor = Supervisor(max_restarts=max_restarts)
    growing = [standing(i + 1, i + 1) for i in range(max_restarts + 1)]
    assert starts(supervisor, *growing) == [None] * max_restarts + [1]
    assert supervisor.n_restarts == max_restarts


def test_a_restart_says_what_died_and_what_is_done_about_it():
    supervisor = Supervisor(max_restarts=1)
    ended = Ended(before=NOTHING, after=FIRST, exit_code=-9)
    sentence = supervisor.judge(ended.replaced(exit_code=137, died="rank 3 on n7: its process died")).sentence
    assert sentence.startswith(
        "rank 3 on n7: its process died; the job ended by signal 9 (SIGKILL, by hand or for lack"
    )
    assert sentence.endswith("starting again from the journal, restart 1 of at most 1")
    assert "--max-restarts" in supervisor.judge(Ended(before=FIRST, after=standing(2, 5), exit_code=1)).sentence


def test_what_lasts_is_what_no_later_start_repeats():
    assert Standing.of(Ledger()) == NOTHING
    story = Story()
    story.begin(0.0, story.assign(0.0, story.suggest(0.0, n=1)))
    story.apply(ev.EpochEnded(time_s=1.0, assignment=0, epoch=1, metrics={}))
    began = Standing(start=(1000.0, 1), n_assigned=1)
    assert Standing.of(story.ledger) == began
    story.apply(ev.EpochEnded(time_s=2.0, assignment=0, epoch=2, metrics={}, checkpointed=True))
    assert Standing.of(story.ledger) == began.replaced(n_lasting=1)
    preempted = copy.deepcopy(story)
    preempted.apply(ev.AssignmentPreempted(time_s=3.0, assignment=0), ev.RunPreempted(time_s=3.0, reason="r"))
    assert Standing.of(preempted.ledger) == began.replaced(n_lasting=1, preempted=True)
    story.finish(3.0, 0)
    story.complete(3.0, 0)
    story.apply(ev.RunCompleted(time_s=3.0, reason="r"))
    assert Standing.of(story.ledger) == began.replaced(n_lasting=3, complete=True, has_result=True)


@pytest.mark.parametrize(
    ("code", "how"),
    [(-9, "by signal 9 (SIGKILL"), (137, "by signal 9 (SIGKILL"), (139, "by signal 11"), (192, "by signal 64")]
    + [(code, f"with code {code} ") for code in (1, 9, 126, 127, 128, 193, 255)],  # 255 is of hydra, ssh and srun
)
def test_only_a_code_that_stands_for_a_signal_is_called_one(code, how):
    ended = Ended(before=NOTHING, after=NOTHING, exit_code=code)
    assert f"the job ended {how}" in Supervisor(max_restarts=3).judge(ended).sentence
