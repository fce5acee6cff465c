from dataclasses import replace

from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.coordinator import instructions as ins
from nnlo_opt.core.coordinator.instructions import Begin, RanksDied
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.trial import FoldResult, Loss, TrialState, UnrecordedFold
from tests.helpers.starts import begin, not_begun, session
from tests.helpers.steps import events_of, finish, from_master, of_type, sends_to, step, stop, suggest


def died(state, *ranks):
    return step(state, RanksDied(ranks=frozenset(ranks)))


def reformed(state, team, alive, taken, goes_on=-1, trains=True):
    ranks = {"alive": alive, "world_ranks": alive if trains else []}
    return from_master(state, team, msg.TeamReformed(**ranks, n_masters=1, taken=taken, goes_on=goes_on))


def training(topology, **plan):
    """A search with a trial on every block."""
    state, first = begin(topology, Ledger([session()]), num_iterations=9, **plan)
    seen = [session(), *events_of(first)]
    for n in range(topology.n_blocks):
        seen += events_of(suggest(state, n=n))
    return state, seen


THREE_RANKS = Topology.plan(7, 3)


def test_a_fold_continues_with_the_remaining_ranks():
    state, _ = training(THREE_RANKS)
    assert not events_of(died(state, 2))
    done = reformed(state, 0, [1, 3], taken=0, goes_on=0)
    (lost,) = events_of(done)
    assert lost == ev.RanksLost(time_s=1.0, ranks=[2], block=1, team=0, n_alive=2, n_ranks=2, assignment=0, counts=True)
    assert state.membership.assignment_of_team[0].number == 0
    assert state.ledger.assignments[0].losses == [Loss(0, "rank 2 died")]
    assert state.ledger.sessions[-1].lost_ranks == {1: [2]}
    assert state.ledger.sessions[-1].lost_blocks == []


def test_a_trial_that_kills_rank_after_rank_is_given_up_while_ranks_are_left():
    state, _ = training(Topology.plan(9, 8), max_attempts=3)
    epoch = msg.EpochReported(assignment=0, epoch=1, metrics={}, figure_of_merit=0.5, checkpointed=True)
    alive = [*range(1, 9)]
    for dies, is_progress in ((8, False), (7, True), (6, False)):
        if is_progress:
            from_master(state, 0, epoch)
        died(state, dies)
        alive.remove(dies)
        done = reformed(state, 0, [*alive], taken=0, goes_on=0)
        assert events_of(done)[0].counts
        assert [type(e) for e in events_of(done)] == [ev.RanksLost]
    died(state, 5)
    done = reformed(state, 0, [1, 2, 3, 4], taken=0, goes_on=0)
    _, failed = events_of(done)
    reason = "ranks that trained it were lost 3 times in a row (`--max-attempts`); the last time: rank 5 died"
    assert failed.reason == reason
    assert sends_to(done, 0) == [msg.StopFold(assignment=0)]
    # What dies until it has stopped is nobody's fault any more, and then the block goes on with something else.
    died(state, 4)
    (lost,) = events_of(reformed(state, 0, [1, 2, 3], taken=0, goes_on=0))
    assert not lost.counts
    suggest(state, n=5)
    done = stop(state, 0, 0)
    assert [type(e) for e in events_of(done)] == [ev.AssignmentStopped, ev.TrialSuggested, ev.FoldAssigned]


def test_a_rank_that_did_not_train_the_trial_was_not_killed_by_it():
    state, _ = training(THREE_RANKS, max_attempts=2)
    died(state, 2)
    spare = msg.TeamReformed(alive=[1, 3], world_ranks=[1], n_masters=1, taken=0, goes_on=0)
    from_master(state, 0, spare)
    died(state, 3)
    (lost,) = events_of(reformed(state, 0, [1], taken=0, goes_on=0))
    assert (lost.ranks, lost.counts) == ([3], False)
    assert state.ledger.trials[0].state is TrialState.RUNNING


def test_a_fold_that_stops_is_assigned_again_to_the_rest_of_the_block():
    state, _ = training(THREE_RANKS)
    done = reformed(state, 0, [2, 3], taken=-1)  # the master has died, and the coordinator has not seen it yet
    lost, ended, again = events_of(done)
    assert (lost.ranks, ended.assignment, ended.reason) == ([1], 0, "rank 1 died")
    assert (again.trial, again.fold, again.attempt, again.block, again.n_ranks) == (0, 0, 2, 1, 2)
    assert [type(m) for m in sends_to(done, 0)] == [msg.RunFold]
    assert state.membership.teams[0].master_rank == 2


def test_an_order_that_is_on_its_way_to_a_master_that_lives_is_not_lost():
    state, _ = training(THREE_RANKS)
    died(state, 2)
    done = reformed(state, 0, [1, 3], taken=-1)
    assert [type(e) for e in events_of(done)] == [ev.RanksLost]
    assert state.membership.assignment_of_team[0].number == 0


def test_the_trial_of_a_block_that_is_lost_goes_to_another():
    state, _ = training(THREE_RANKS)
    done = died(state, 1, 2, 3)
    assert [type(e) for e in events_of(done)] == [ev.RanksLost, ev.AssignmentLost]
    assert state.membership.out == {1}
    done = finish(state, 1, 1)
    again = next(e for e in events_of(done) if isinstance(e, ev.FoldAssigned))
    assert (again.trial, again.attempt, again.block) == (0, 2, 2), "before anything new"


def test_a_block_too_small_to_train_is_spare():
    state, _ = training(THREE_RANKS)
    died(state, 1)
    done = reformed(state, 0, [2, 3], taken=-1, trains=False)
    lost = events_of(done)[0]
    assert (lost.n_alive, lost.n_ranks) == (2, 0)
    assert state.ledger.sessions[-1].lost_blocks == [1]
    assert state.membership.out == {1}
    assert list(state.to_resume) == [0]


def test_the_search_gives_up_when_no_block_is_left():
    state, _ = training(THREE_RANKS)
    assert not of_type(died(state, 1, 2, 3), ins.GiveUp)
    (give_up,) = of_type(died(state, 1, 2, 3, 4, 5, 6), ins.GiveUp)
    assert "--opt-restore" in give_up.reason


def test_a_team_that_is_broken_is_given_nothing():
    state, _ = training(THREE_RANKS)
    died(state, 2)
    done = finish(state, 0, 0)  # sent before its master heard of the death
    assert state.ledger.trials[0].state is TrialState.COMPLETE
    assert not [m for m in sends_to(done, 0) if isinstance(m, msg.RunFold)]
    suggest(state, n=7)
    assert state.membership.out == {1}
    done = reformed(state, 0, [1, 3], taken=0)
    assert [type(m) for m in sends_to(done, 0)] == [msg.RunFold]


def test_a_late_message_of_a_dead_master_is_dropped():
    state, _ = training(THREE_RANKS)
    reformed(state, 0, [2, 3], taken=-1)
    assert not events_of(finish(state, 0, 0))


def test_folds_that_finished_without_a_coordinator_are_not_trained_again():
    _, seen = training(THREE_RANKS)
    result = FoldResult(figure_of_merit=0.2, metrics={"loss": 0.2}, n_epochs=3, train_s=1.0)
    kept = UnrecordedFold(assignment=0, trial=0, fold=0, attempt=1, point={"n": 0}, result=result, reason="done")
    of_another_run = replace(kept, assignment=1, trial=1, point={"n": 77})
    state = not_begun(THREE_RANKS, Ledger(seen), num_iterations=9)
    done = step(state, Begin(finished=(kept, of_another_run)))
    finished, lost, completed, again = events_of(done)[:4]
    assert (finished.assignment, finished.figure_of_merit, finished.reason) == (0, 0.2, "done")
    assert (lost.assignment, lost.reason) == (1, "the run was ended")
    assert (completed.trial, completed.figure_of_merit) == (0, 0.2)
    assert (again.trial, again.attempt) == (1, 2)
