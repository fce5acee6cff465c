import pytest

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.comm.topology import NO_TEAMS, Topology
from nnlo_opt.core.coordinator.membership import Membership, TeamState
from tests.helpers.steps import check_blocks

TWO_BLOCKS = Topology.plan(7, 3)  # ranks 1 to 3, and 4 to 6
TWO_TEAMS = Topology.plan(5, 4, n_fold=2)  # one block of ranks 1 and 2, and 3 and 4


def test_a_team_is_broken_until_it_regroups_and_lost_without_members() -> None:
    membership = Membership(TWO_BLOCKS)
    assert membership.died([2]) == [0]
    assert membership.take_unrecorded(0) == [2]
    assert (membership.states[0], membership.states[1]) == (TeamState.BROKEN, TeamState.READY)
    assert membership.ready(1) == []
    assert membership.may_train(1)
    membership.reformed(0, [1, 3], [1, 3], 1)
    assert membership.take_unrecorded(0) == []
    assert [team.world_ranks for team in membership.ready(1)] == [(1, 3)]
    assert membership.died([1, 2, 3]) == [0]
    assert membership.take_unrecorded(0) == [1, 3], "what was known is no news"
    assert membership.states[0] is TeamState.LOST
    assert not membership.may_train(1)
    assert membership.n_may_train
    membership.died([4, 5, 6])
    assert not membership.n_may_train


def test_a_team_may_report_dead_ranks_before_they_are_seen() -> None:
    membership = Membership(TWO_BLOCKS)
    membership.reformed(0, [2, 3], [2, 3], 1)
    assert membership.take_unrecorded(0) == [1]
    assert membership.teams[0].master_rank == 2
    assert membership.died([1]) == []
    assert membership.take_unrecorded(0) == []
    assert membership.states[0] is TeamState.READY


def test_what_a_team_says_is_old_where_more_have_died_since() -> None:
    membership = Membership(TWO_BLOCKS)
    membership.died([1, 2])
    assert membership.take_unrecorded(0) == [1, 2]
    membership.reformed(0, [2, 3], [2, 3], 1)
    assert membership.take_unrecorded(0) == []
    assert membership.states[0] is TeamState.BROKEN
    membership.reformed(0, [3], [3], 1)
    assert membership.states[0] is TeamState.READY


def test_a_trial_goes_to_the_first_idle_block_whichever_were_released_or_lost_before() -> None:
    membership = Membership(Topology.plan(7, 2))
    assert [membership.place(trial, 0.0) for trial in range(3)] == [1, 2, 3]
    for block in (3, 1, 2):
        membership.release(block, 1.0)
    membership.died(membership.topology.teams[0].world_ranks)
    membership.update_free(1)
    assert [membership.place(trial, 1.0) for trial in (3, 4)] == [2, 3]


def test_a_team_that_cannot_train_is_spare_and_its_block_does_without() -> None:
    membership = Membership(TWO_TEAMS)
    membership.died([1])
    membership.reformed(0, [2], [], 1)
    assert membership.states[0] is TeamState.SPARE
    assert [team.index for team in membership.ready(1)] == [1]
    assert membership.n_left(1) == (3, 2)
    membership.died([2])
    assert membership.states[0] is TeamState.LOST
    assert membership.n_left(1) == (2, 2)


def test_what_a_lost_team_had_said_changes_nothing() -> None:
    membership = Membership(TWO_BLOCKS)
    membership.died([1, 2, 3])
    assert membership.take_unrecorded(0) == [1, 2, 3]
    membership.reformed(0, [2, 3], [2, 3], 1)
    assert membership.take_unrecorded(0) == []
    assert membership.states[0] is TeamState.LOST


def test_a_team_cannot_become_another() -> None:
    with pytest.raises(ProtocolError, match="Team 0 cannot have become"):
        Membership(TWO_BLOCKS).reformed(0, [3, 4], [3, 4], 1)


# ---------------------------------------------------------------- blocks

#: three blocks of two ranks, one team each
THREE = Topology.plan(7, 2)


def test_the_idle_block_of_the_lowest_number_is_given_a_trial_first():
    blocks = Membership(THREE)
    assert [blocks.place(trial, 1.0) for trial in (7, 8, 9)] == [1, 2, 3]
    assert blocks.trial_of_block == {1: 7, 2: 8, 3: 9}
    assert blocks.release(3, 5.0) == 4.0
    assert blocks.release(1, 2.5) == 1.5
    check_blocks(blocks, THREE)
    assert [blocks.place(trial, 9.0) for trial in (4, 5)] == [1, 3]
    assert not blocks.idle


# ---------------------------------------------------------------- jobs


def test_teams_join_away_and_are_lost_with_their_job():
    membership = Membership(NO_TEAMS)
    membership.join(THREE)
    membership.join(TWO_TEAMS)
    check_blocks(membership, membership.topology)
    assert (membership.idle, membership.out) == ([], {1, 2, 3, 4})
    assert membership.team_of[2] == 0
    assert membership.team_of[9] == 3, "rank 2 of the second job, whose ranks begin at 7"
    membership.away -= {0, 3, 4}
    for block in (1, 4):
        membership.update_free(block)
    check_blocks(membership, membership.topology)
    assert (membership.idle, len(membership.ready(4))) == ([1, 4], 2)
    membership.leave(range(3, 5))
    membership.update_free(4)
    assert (membership.out, membership.n_may_train) == ({2, 3, 4}, 3)
    assert membership.take_unrecorded(3) == [], "no rank has died"


def test_a_team_may_report_that_none_of_its_ranks_is_left() -> None:
    membership = Membership(TWO_BLOCKS)
    membership.reformed(0, [], [], 1)
    assert membership.states[0] is TeamState.LOST
    assert membership.take_unrecorded(0) == [1, 2, 3]
