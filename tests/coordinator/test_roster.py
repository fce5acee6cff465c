import pytest

from nnlo_opt.comm.topology import Topology
from nnlo_opt.coordinator.roster import Roster, TeamState
from nnlo_opt.errors import ProtocolError

TWO_BLOCKS = Topology.plan(7, 3)  # ranks 1 to 3, and 4 to 6
TWO_TEAMS = Topology.plan(5, 4, n_fold=2)  # one block of ranks 1 and 2, and 3 and 4


def test_a_team_is_broken_until_it_has_come_together_and_lost_when_nobody_is_left() -> None:
    roster = Roster(TWO_BLOCKS)
    assert roster.died([2]) == {0: {2}}
    assert (roster.state(0), roster.state(1)) == (TeamState.BROKEN, TeamState.READY)
    assert roster.ready(1) == []
    assert roster.has_hope(1)
    assert roster.reformed(0, [1, 3], [1, 3], 1) == set()
    assert [team.world_ranks for team in roster.ready(1)] == [(1, 3)]
    assert roster.died([1, 2, 3]) == {0: {1, 3}}, "what was known is no news"
    assert roster.state(0) is TeamState.LOST
    assert not roster.has_hope(1)
    assert not roster.is_hopeless
    roster.died([4, 5, 6])
    assert roster.is_hopeless


def test_a_team_may_say_who_has_died_before_anybody_sees_it() -> None:
    roster = Roster(TWO_BLOCKS)
    assert roster.reformed(0, [2, 3], [2, 3], 1) == {1}
    assert roster.team(0).master_rank == 2
    assert roster.died([1]) == {}
    assert roster.state(0) is TeamState.READY


def test_what_a_team_says_is_old_where_more_have_died_since() -> None:
    roster = Roster(TWO_BLOCKS)
    roster.died([1, 2])
    assert roster.reformed(0, [2, 3], [2, 3], 1) == set()
    assert roster.state(0) is TeamState.BROKEN
    roster.reformed(0, [3], [3], 1)
    assert roster.state(0) is TeamState.READY


def test_a_team_that_cannot_train_is_spare_and_its_block_does_without() -> None:
    roster = Roster(TWO_TEAMS)
    roster.died([1])
    roster.reformed(0, [2], [], 1)
    assert roster.state(0) is TeamState.SPARE
    assert [team.index for team in roster.ready(1)] == [1]
    assert roster.n_left(1) == (3, 2)
    roster.died([2])
    assert roster.state(0) is TeamState.LOST
    assert roster.n_left(1) == (2, 2)


def test_what_a_lost_team_had_said_changes_nothing() -> None:
    roster = Roster(TWO_BLOCKS)
    roster.died([1, 2, 3])
    assert roster.reformed(0, [2, 3], [2, 3], 1) == set()
    assert roster.state(0) is TeamState.LOST


def test_a_team_cannot_become_another() -> None:
    with pytest.raises(ProtocolError, match="Team 0 cannot have become"):
        Roster(TWO_BLOCKS).reformed(0, [3, 4], [3, 4], 1)
