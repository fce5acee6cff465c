import copy

import pytest

from nnlo_opt.comm.topology import Topology
from nnlo_opt.coordinator.blocks import Blocks
from nnlo_opt.coordinator.roster import Roster
from nnlo_opt.errors import ProtocolError
from nnlo_opt.trials.trial import Assignment

#: three blocks of two ranks, one team each
THREE = Topology.plan(7, 2)


def blocks_of(topology=THREE):
    roster = Roster(topology)
    blocks = Blocks(topology, roster)
    blocks.check()
    return blocks, roster


def assigned(blocks, team, trial):
    blocks.assignment_of_team[team] = Assignment(
        number=team,
        trial=trial,
        fold=0,
        attempt=1,
        block=blocks.block_of(team),
        team=team,
        n_ranks=2,
        assigned_at_s=0.0,
    )


def test_the_idle_block_of_the_lowest_number_is_given_a_trial_first():
    blocks, _ = blocks_of()
    assert [blocks.give(trial, 1.0) for trial in (7, 8, 9)] == [1, 2, 3]
    assert blocks.trial_of_block == {1: 7, 2: 8, 3: 9}
    assert blocks.free(3, 5.0) == 4.0
    assert blocks.free(1, 2.5) == 1.5
    blocks.check()
    assert [blocks.give(trial, 9.0) for trial in (4, 5)] == [1, 3]
    assert not blocks.idle


def test_a_block_is_busy_while_any_of_its_teams_is_and_the_others_may_be_given_folds():
    blocks, _ = blocks_of(Topology.plan(5, 4, n_fold=2))
    block = blocks.give(0, 1.0)
    assert not blocks.is_busy(block)
    assert [team.index for team in blocks.idle_teams(block)] == [0, 1]
    assigned(blocks, 1, trial=0)
    blocks.check()
    assert blocks.is_busy(block)
    assert [team.index for team in blocks.idle_teams(block)] == [0]


def test_a_block_whose_team_is_broken_is_out_until_that_has_come_together():
    blocks, roster = blocks_of()
    roster.died([3])
    blocks.look_again(2)
    blocks.check()
    assert (blocks.idle, blocks.out) == ([1, 3], {2})
    roster.reformed(1, alive=[4], world_ranks=[4], n_masters=1)
    blocks.look_again(2)
    blocks.check()
    assert (sorted(blocks.idle), blocks.out) == ([1, 2, 3], set())


def test_a_block_that_can_no_longer_train_is_out_when_its_trial_has_left_it():
    blocks, roster = blocks_of()
    blocks.give(0, 1.0)
    roster.died([1, 2])
    assert blocks.free(1, 2.0) == 1.0
    blocks.check()
    assert blocks.out == {1}


def test_check_finds_what_must_never_be():
    blocks, roster = blocks_of()
    blocks.give(0, 1.0)
    assigned(blocks, 0, trial=0)
    blocks.check()
    broken = copy.deepcopy(blocks)
    assigned(broken, 0, trial=1)
    with pytest.raises(ProtocolError, match="does not hold"):
        broken.check()
    broken = copy.deepcopy(blocks)
    broken.give(0, 1.0)
    with pytest.raises(ProtocolError, match="Two blocks hold the same trial"):
        broken.check()
    broken = copy.deepcopy(blocks)
    broken.out.add(1)
    with pytest.raises(ProtocolError, match="is two of these"):
        broken.check()
    roster.died([3, 4])
    with pytest.raises(ProtocolError, match="idle that cannot train"):
        blocks.check()
    blocks.look_again(2)
    blocks.check()
    roster.died([1, 2])
    with pytest.raises(ProtocolError, match="has an assignment that cannot train"):
        blocks.check()
