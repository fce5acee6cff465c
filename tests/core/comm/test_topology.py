from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.comm.topology import NO_TEAMS, Topology, plan_groups, plan_single_block, reformed

worlds = st.integers(1, 200)
block_sizes = st.integers(1, 40)
folds = st.integers(1, 12)


def ranks_of_blocks(topology):
    blocks = range(1, topology.n_blocks + 1)
    return [[rank for team in topology.teams_of(block) for rank in team.world_ranks] for block in blocks]


@given(world_size=worlds, block_size=block_sizes, n_fold=folds)
def test_every_rank_has_exactly_one_role_and_the_coordinator_trains_nothing(world_size, block_size, n_fold):
    topology = Topology.plan(world_size, block_size, n_fold)
    trainers = [rank for team in topology.teams for rank in team.world_ranks]
    # One process alone plays two ranks: 0 coordinates, 1 trains.
    assert trainers == list(range(1, max(world_size, 2)))
    assert topology.world_size == world_size
    assert topology.team_of_rank(0) is None
    for team in topology.teams:
        assert all(topology.team_of_rank(rank) is team for rank in team.world_ranks)


@given(world_size=worlds, block_size=block_sizes, n_fold=folds)
def test_teams_are_numbered_contiguous_and_never_empty(world_size, block_size, n_fold):
    topology = Topology.plan(world_size, block_size, n_fold)
    assert [team.index for team in topology.teams] == list(range(len(topology.teams)))
    for team in topology.teams:
        first, *_ = team.world_ranks
        assert team.world_ranks == tuple(range(first, first + len(team.world_ranks)))
        assert team.master_rank == first
        assert team.first_trainer_rank in team.world_ranks
        assert (team.first_trainer_rank == team.master_rank) == (len(team.world_ranks) == 1)
        assert team.n_workers == max(1, len(team.world_ranks) - 1)
    assert sorted({team.block for team in topology.teams}) == list(range(1, topology.n_blocks + 1))
    assert [team.block for team in topology.teams] == sorted(team.block for team in topology.teams)


@given(world_size=st.integers(2, 200), block_size=block_sizes, n_fold=folds)
def test_only_the_last_block_departs_from_the_block_size_and_then_one_sentence_says_so(world_size, block_size, n_fold):
    topology = Topology.plan(world_size, block_size, n_fold)
    sizes = [len(ranks) for ranks in ranks_of_blocks(topology)]
    assert all(size == block_size for size in sizes[:-1])
    n_left = (world_size - 1) % block_size
    if n_left == 0:
        assert sizes[-1] == block_size
    elif n_left == 1 and world_size - 1 > block_size:
        assert sizes[-1] == block_size + 1
    else:
        assert sizes[-1] == n_left
    assert bool(topology.remark) == (sizes[-1] != block_size)
    assert topology.remark == "" or (topology.remark.endswith(".") and topology.remark.count(".") == 1)


@given(world_size=worlds, block_size=block_sizes, n_fold=folds)
def test_a_block_of_at_least_two_ranks_per_fold_is_cut_evenly_into_one_team_per_fold(world_size, block_size, n_fold):
    topology = Topology.plan(world_size, block_size, n_fold)
    for block, ranks in enumerate(ranks_of_blocks(topology), start=1):
        sizes = [len(team.world_ranks) for team in topology.teams_of(block)]
        if n_fold > 1 and len(ranks) >= 2 * n_fold:
            assert len(sizes) == n_fold
            assert max(sizes) - min(sizes) <= 1
            assert min(sizes) >= 2
        else:
            assert sizes == [len(ranks)]


@given(block_size=block_sizes)
def test_a_growing_world_never_loses_a_block_of_full_size(block_size):
    n_blocks = [Topology.plan(world_size, block_size).n_blocks for world_size in range(1, 4 * block_size + 3)]
    assert all(smaller <= larger for smaller, larger in pairwise(n_blocks))


@pytest.mark.parametrize(
    ("world_size", "block_size", "n_fold", "teams"),
    [
        (1, 2, 1, [(1,)]),
        (2, 2, 1, [(1,)]),
        (2, 1, 1, [(1,)]),
        (3, 2, 1, [(1, 2)]),
        (4, 2, 1, [(1, 2, 3)]),
        (5, 2, 1, [(1, 2), (3, 4)]),
        (7, 3, 1, [(1, 2, 3), (4, 5, 6)]),
        (9, 3, 1, [(1, 2, 3), (4, 5, 6), (7, 8)]),
        (5, 8, 1, [(1, 2, 3, 4)]),
        (13, 6, 2, [(1, 2, 3), (4, 5, 6), (7, 8, 9), (10, 11, 12)]),
        (6, 5, 2, [(1, 2), (3, 4, 5)]),
        (5, 4, 3, [(1, 2, 3, 4)]),
    ],
)
def test_plans_written_out(world_size, block_size, n_fold, teams):
    assert [team.world_ranks for team in Topology.plan(world_size, block_size, n_fold).teams] == teams


@pytest.mark.parametrize("block_size", [0, -3])
def test_a_block_without_ranks_is_refused_in_one_sentence(block_size):
    with pytest.raises(ConfigurationError, match=rf"`--block-size` must be at least 1.*Received: {block_size}\."):
        Topology.plan(5, block_size)


@pytest.mark.parametrize("world_size", [1, 2, 7])
def test_a_training_takes_the_whole_world_as_one_block(world_size):
    topology = plan_single_block(world_size)
    assert topology.n_blocks == 1
    assert topology.teams[0].world_ranks == tuple(range(world_size))
    assert topology.teams[0].master_rank == 0


# ---------------------------------------------------------------- sub-masters

MASTERS = {"n_ranks": st.integers(1, 120), "n_masters": st.integers(2, 12), "ranks_per_worker": st.integers(1, 4)}


@given(**MASTERS)
def test_groups_take_all_ranks_behind_the_top_master_and_differ_by_one_worker_at_most(
    n_ranks, n_masters, ranks_per_worker
):
    groups = plan_groups(n_ranks, n_masters, ranks_per_worker)
    n_left = n_ranks - n_masters
    fits = n_left >= (n_masters - 1) * ranks_per_worker and n_left % ranks_per_worker == 0
    assert bool(groups) == fits
    if not fits:
        return
    assert [group.number for group in groups] == list(range(1, n_masters))
    positions = [p for group in groups for p in range(group.head, group.head + group.n_ranks)]
    assert positions == list(range(1, n_ranks))
    workers = [worker for group in groups for worker in group.workers]
    assert workers == list(range(1, n_left // ranks_per_worker + 1))
    sizes = [len(group.workers) for group in groups]
    assert min(sizes) >= 1
    assert max(sizes) - min(sizes) <= 1


@given(**MASTERS)
def test_every_rank_of_a_tree_is_a_master_or_part_of_one_worker(n_ranks, n_masters, ranks_per_worker):
    team = plan_single_block(n_ranks, n_masters=n_masters, ranks_per_worker=ranks_per_worker).teams[0]
    if not team.groups:
        return
    masters = {team.master_rank, *team.sub_master_ranks}
    assert len(masters) == n_masters
    assert sorted({*masters, *team.trainer_ranks}) == list(team.world_ranks)
    numbers = [team.worker_of(rank) for rank in team.world_ranks[1:]]
    assert numbers.count(-1) == n_masters - 1
    for worker in range(1, team.n_workers + 1):
        assert numbers.count(worker) == ranks_per_worker
    assert team.worker_of(team.first_trainer_rank) == 1
    assert team.n_children == (n_masters - 1, *(len(group.workers) for group in team.groups))


def test_one_master_has_no_groups():
    for n_ranks in (1, 2, 9):
        assert plan_single_block(n_ranks).teams[0].groups == ()


def test_a_tree_of_a_block_and_of_its_sub_blocks():
    team = Topology.plan(10, 9, n_masters=3).teams[0]
    assert [(g.head, g.workers, g.n_ranks) for g in team.groups] == [(1, range(1, 4), 4), (5, range(4, 7), 4)]
    assert team.sub_master_ranks == (2, 6)
    assert team.trainer_ranks == (3, 4, 5, 7, 8, 9)
    halves = Topology.plan(11, 10, n_fold=2, n_masters=3).teams
    assert [half.n_workers for half in halves] == [2, 2]


# ---------------------------------------------------------------- ranks that die


def test_the_lowest_rank_that_is_left_leads_the_team():
    team = plan_single_block(5).teams[0]
    smaller = reformed(team, (1, 3, 4))
    assert (smaller.world_ranks, smaller.master_rank, smaller.n_workers) == ((1, 3, 4), 1, 2)
    assert reformed(team, (4,)).n_workers == 1
    assert reformed(team, ()) is None


def test_ranks_that_make_no_whole_worker_are_left_out_and_needed_again():
    team = plan_single_block(7, ranks_per_worker=2).teams[0]
    assert reformed(team, (0, 1, 2, 3, 4, 6)).world_ranks == (0, 1, 2, 3, 4)
    assert reformed(team, (0, 2, 4, 6)).world_ranks == (0, 2, 4)


def test_workers_have_fewer_ranks_when_there_would_be_none_otherwise():
    team = plan_single_block(7, ranks_per_worker=3).teams[0]
    assert (reformed(team, (0, 1, 2, 3)).ranks_per_worker, reformed(team, (0, 1, 2, 3)).n_workers) == (3, 1)
    assert (reformed(team, (0, 2, 6)).ranks_per_worker, reformed(team, (0, 2, 6)).n_workers) == (2, 1)
    assert (reformed(team, (0, 6)).ranks_per_worker, reformed(team, (0, 6)).n_workers) == (1, 1)
    assert reformed(team, (6,)).n_workers == 1
    # An update rule that needs two workers has two of fewer ranks.
    assert reformed(team, (0, 1, 2, 3, 4), least_children=2).ranks_per_worker == 2
    # Sub-masters go first.
    tree = plan_single_block(7, n_masters=3, ranks_per_worker=2).teams[0]
    assert (reformed(tree, (0, 1, 2)).n_masters, reformed(tree, (0, 1, 2)).ranks_per_worker) == (1, 2)


def test_a_tree_has_fewer_masters_when_its_ranks_do_not_suffice():
    team = plan_single_block(7, n_masters=3).teams[0]
    assert reformed(team, (0, 1, 2, 3, 4)).n_masters == 3
    assert reformed(team, (0, 1, 2, 3)).n_masters == 2
    assert reformed(team, (0, 1)).n_masters == 1


def test_an_update_rule_may_need_more_workers_than_are_left():
    team = plan_single_block(4).teams[0]
    assert reformed(team, (0, 1, 2), least_children=2) is not None
    assert reformed(team, (0, 1), least_children=2) is None


@given(st.integers(1, 12), st.integers(1, 4), st.integers(1, 3), st.data())
def test_a_team_that_continues_could_have_been_planned(n_ranks, n_masters, per_worker, data):
    team = plan_single_block(n_ranks, n_masters=n_masters, ranks_per_worker=per_worker).teams[0]
    alive = tuple(sorted(data.draw(st.sets(st.sampled_from(range(n_ranks))))))
    smaller = reformed(team, alive)
    if smaller is None:
        assert not alive
        return
    assert smaller.world_ranks == alive[: len(smaller.world_ranks)]
    assert len(alive) - len(smaller.world_ranks) < smaller.ranks_per_worker <= per_worker
    assert 1 <= smaller.n_masters <= n_masters
    assert bool(smaller.groups) == (smaller.n_masters > 1)
    assert all(n >= 1 for n in smaller.n_children)


@given(shapes=st.lists(st.tuples(worlds, block_sizes), min_size=1, max_size=5), n_fold=st.integers(1, 3))
def test_ranks_blocks_and_teams_of_jobs_are_numbered_on(shapes, n_fold):
    topology = NO_TEAMS
    assert topology.n_blocks == 0
    for world_size, block_size in shapes:
        part, before = Topology.plan(world_size, block_size, n_fold), topology
        topology = before.with_job(part)
        assert topology.teams[: len(before.teams)] == before.teams
        assert topology.n_blocks == before.n_blocks + part.n_blocks
        # Rank 0 of the job only coordinates; a single process plays two ranks.
        own = {rank for team in topology.teams[len(before.teams) :] for rank in team.world_ranks}
        assert own == set(range(before.world_size + 1, before.world_size + max(world_size, 2)))
        assert topology.world_size == before.world_size + max(world_size, 2)
        ranks = [ranks_of_blocks(part), ranks_of_blocks(topology)[before.n_blocks :]]
        assert [[rank + before.world_size for rank in block] for block in ranks[0]] == ranks[1]
    assert [team.index for team in topology.teams] == list(range(len(topology.teams)))
