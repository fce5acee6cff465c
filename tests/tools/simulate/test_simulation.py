"""Closed forms of simulated searches, and what must hold for any of them."""

import sys
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.core.base.errors import ProtocolError
from nnlo_opt.core.base.safe_path import MOST_BYTES
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.coordinator.instructions import SearchPlan
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.journal import Journal, read_events
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.engine.search.process import InlineSearch
from nnlo_opt.tools.simulate.clock import MEASURED
from nnlo_opt.tools.simulate.simulation import Simulation, SimulationPlan, VirtualMaster
from nnlo_opt.tools.simulate.workload import BUILTIN, SimulatedObjective, Workload, lognormal
from tests.helpers.effort import examples

BRANIN = BUILTIN["branin"]
TEN_S = Workload(objective=BRANIN, durations=lognormal(10.0))


def plan_of(n_blocks, n_trials, workload=TEN_S, **changes):
    plan = SimulationPlan(
        search=SearchPlan(num_iterations=n_trials), topology=Topology.plan(1 + n_blocks, 1), workload=workload
    )
    return plan.replaced(**changes)


def started(space, algorithm="random"):
    search = InlineSearch()
    search.start(algorithm, space, 0, {})
    return search


@contextmanager
def simulation_of(plan):
    with TemporaryDirectory() as directory, closing(Journal(Path(directory) / "journal.jsonl", syncs=False)) as journal:
        yield Simulation(plan, started(plan.workload.objective.space), journal), journal.path


def run(plan):
    """(result, ledger, events of the journal)"""
    with simulation_of(plan) as (simulation, path):
        return simulation.run(), simulation.ledger, read_events(path.read_bytes(MOST_BYTES), "journal")[0]


# ---------------------------------------------------------------- closed forms


@pytest.mark.parametrize(("n_blocks", "n_trials", "rounds"), [(1, 7, 7), (4, 12, 3), (5, 12, 3), (20, 12, 1)])
def test_equal_trials_fill_the_blocks_round_by_round(n_blocks, n_trials, rounds):
    result, _, _ = run(plan_of(n_blocks, n_trials))
    assert result.makespan_s == 10.0 * rounds
    assert result.utilization == pytest.approx(n_trials / (n_blocks * rounds))
    assert result.dispatch_gap.max_s == 0.0
    assert result.n_trials == {"complete": n_trials}


def test_the_end_is_no_part_of_the_time_in_which_trials_were_left():
    result, _, _ = run(plan_of(5, 12))
    assert result.utilization == pytest.approx(12 / 15)
    assert result.utilization_searching == pytest.approx(1.0)


def test_a_slow_search_makes_the_blocks_wait_and_sets_the_pace():
    # 4 blocks of 10 s take 0.4 trials a second, the search makes 0.25.
    result, ledger, _ = run(plan_of(4, 20, suggestion_cost=4.0))
    assert result.makespan_s == pytest.approx(20 * 4.0 + 10.0)
    assert result.suggestion.median_s == 4.0
    # The lowest number goes first, so three blocks do all: each is busy for 10 s of the 12 s that 3 suggestions take.
    assert {assignment.block for assignment in ledger.assignments} == {1, 2, 3}
    assert (result.dispatch_gap.median_s, result.dispatch_gap.max_s) == (2.0, 2.0)
    assert [trial.assignments[0].assigned_at_s for trial in ledger.trials] == [4.0 * (i + 1) for i in range(20)]


def test_a_search_that_is_fast_enough_is_not_waited_for_after_the_first_suggestions():
    result, _, _ = run(plan_of(4, 20, suggestion_cost=1.0))
    assert result.dispatch_gap.max_s == pytest.approx(0.0)
    assert result.makespan_s == pytest.approx(4.0 + 5 * 10.0)  # the last block begins after 4 suggestions


def test_what_the_coordinator_takes_for_what_has_come_is_the_gap_between_two_trials():
    result, _, _ = run(plan_of(1, 6, coordinator_cost=0.25))
    # The report of the last epoch comes with the end of the fold and is taken in with it.
    assert result.dispatch_gap.median_s == pytest.approx(0.25)
    assert result.dispatch_gap.max_s == pytest.approx(0.25)


def test_a_busy_coordinator_takes_what_has_come_meanwhile_at_once():
    # All 8 blocks start, report and end at the same time, and each look at what has come takes a second.
    result, _, _ = run(plan_of(8, 16, coordinator_cost=1.0))
    assert 1.0 <= result.dispatch_gap.max_s <= 2.0
    # The journal takes a message that waits for part of its trial; the teams know better.
    assert result.utilization > result.team_utilization == pytest.approx(16 * 10.0 / (8 * result.makespan_s))


def test_measured_costs_are_time_that_really_passed():
    result, _, _ = run(plan_of(2, 20, coordinator_cost=MEASURED, suggestion_cost=MEASURED))
    assert 0.0 < result.dispatch_gap.median_s < result.wall_s
    assert 0.0 < result.suggestion.max_s < result.cpu_s
    assert 100.0 < result.makespan_s < 100.0 + result.wall_s


def test_a_start_takes_its_time_and_is_part_of_the_trial():
    result, ledger, _ = run(plan_of(1, 2, TEN_S.replaced(startup_s=5.0)))
    assert result.makespan_s == 30.0
    assert [a.started_at_s for a in ledger.assignments] == [5.0, 20.0]
    assert result.utilization == 1.0


def test_epochs_divide_the_duration_evenly_and_a_list_has_a_value_for_each():
    curve = SimulatedObjective(name="curve", function=lambda point: [4.0, 2.0, 1.0, 3.0], space=BRANIN.space)
    _, ledger, events = run(plan_of(1, 1, TEN_S.replaced(objective=curve)))
    epochs = [(e.time_s, e.epoch, e.metrics) for e in events if isinstance(e, ev.EpochEnded)]
    values = [4.0, 2.0, 1.0, 3.0]
    assert epochs == [(2.5 * n, n, {"value": value}) for n, value in enumerate(values, 1)]
    assert ledger.trials[0].figure_of_merit == 3.0
    _, ledger, events = run(plan_of(1, 1, TEN_S.replaced(n_epochs=2)))
    assert [e.time_s for e in events if isinstance(e, ev.EpochEnded)] == [5.0, 10.0]
    assert ledger.trials[0].folds[0].n_epochs == 2


def test_folds_train_at_the_same_time_on_the_teams_of_a_block_and_else_one_after_another():
    search = SearchPlan(num_iterations=3, n_fold=2)
    result, _, _ = run(plan_of(1, 3, search=search, topology=Topology.plan(5, 4, 2)))
    assert (result.makespan_s, result.utilization) == (30.0, 1.0)
    result, _, _ = run(plan_of(1, 3, search=search, topology=Topology.plan(2, 1, 2)))
    assert (result.makespan_s, result.utilization) == (60.0, 1.0)


# ---------------------------------------------------------------- faults


def test_a_search_whose_trials_all_fail_ends_without_a_best_one():
    result, ledger, _ = run(plan_of(3, 9, TEN_S.replaced(failures=1.0)))
    assert result.n_trials == {"failed": 9}
    assert result.best == ()
    assert result.regret is None
    assert all(0 <= a.ended_at_s - a.started_at_s < 10.0 for a in ledger.assignments)


@pytest.mark.proof
def test_as_many_trials_fail_as_asked_for_and_anywhere_in_their_training():
    _, ledger, _ = run(plan_of(50, 2000, TEN_S.replaced(failures=0.3)))
    failed = [a for a in ledger.assignments if a.reason]
    assert 540 <= len(failed) <= 660  # 3 standard deviations around 600
    shares = [(a.ended_at_s - a.started_at_s) / 10.0 for a in failed]
    assert 0.46 < sum(shares) / len(shares) < 0.54


def boom(point):
    raise ZeroDivisionError("of the user")


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (boom, "ZeroDivisionError: of the user"),
        (lambda point: float("nan"), "the objective must return finite numbers; received: nan"),
        (lambda point: [], "the objective must return finite numbers; received: []"),
        (lambda point: [1.0, 0.1 + 5j], "numbers; received: (0.1+5j)"),
        (lambda point: "text", "which is text: convert it"),
    ],
)
def test_an_objective_that_raises_or_returns_no_numbers_fails_its_trial_and_nothing_else(function, reason):
    objective = SimulatedObjective(name="bad", function=function, space=BRANIN.space)
    result, ledger, _ = run(plan_of(2, 4, TEN_S.replaced(objective=objective)))
    assert result.n_trials == {"failed": 4}
    assert all(reason in trial.reason for trial in ledger.trials)


# ---------------------------------------------------------------- what must always hold


def test_a_trial_is_the_same_on_any_number_of_blocks():
    workload = Workload(objective=BRANIN, durations=lognormal(60.0, 0.5), failures=0.2, seed=3)

    def outcomes(n_blocks):
        _, ledger, _ = run(plan_of(n_blocks, 40, workload))
        took = [trial.assignments[0].ended_at_s - trial.assignments[0].assigned_at_s for trial in ledger.trials]
        return [(trial.point, trial.figure_of_merit) for trial in ledger.trials], took

    trials, took = outcomes(1)
    for n_blocks in (2, 7, 64):
        others, others_took = outcomes(n_blocks)
        assert others == trials
        assert others_took == pytest.approx(took)


def test_the_regret_falls_to_that_of_the_best_trial():
    result, ledger, _ = run(plan_of(4, 300, TEN_S.replaced(durations=lognormal(60.0, 0.5))))
    regrets = [step.regret for step in result.best]
    assert regrets == sorted(regrets, reverse=True)
    best = ledger.best("min")
    assert (result.best[-1].trial, result.best[-1].figure_of_merit) == (best.number, best.figure_of_merit)
    assert result.regret == pytest.approx(best.figure_of_merit - 0.397887, abs=1e-5)
    assert [step.time_s for step in result.best] == sorted(step.time_s for step in result.best)


def test_where_the_figure_is_maximised_the_regret_is_how_far_it_lies_below():
    objective = SimulatedObjective(
        name="hill", function=lambda p: -((p["x1"] - 1.0) ** 2), space=BRANIN.space, optimum=0.0
    )
    search = SearchPlan(num_iterations=50, direction="max")
    result, ledger, _ = run(plan_of(3, 50, TEN_S.replaced(objective=objective), search=search))
    assert result.regret == -ledger.best("max").figure_of_merit > 0


def test_a_target_ends_the_search():
    search = SearchPlan(num_iterations=500, target_objective=5.0)
    result, ledger, _ = run(plan_of(4, 500, search=search))
    assert ledger.best("min").figure_of_merit < 5.0
    assert len(ledger.trials) < 500
    assert "target" in result.reason


@st.composite
def plans(draw):
    n_fold, costs = draw(st.integers(1, 3)), st.sampled_from([0.0, 0.5, 20.0])
    durations = lognormal(10.0, draw(st.sampled_from([0.0, 0.5, 2.0])))
    failures = draw(st.sampled_from([0.0, 0.3, 1.0]))
    return SimulationPlan(
        search=SearchPlan(num_iterations=draw(st.integers(1, 25)), n_fold=n_fold),
        topology=Topology.plan(draw(st.integers(2, 30)), draw(st.integers(1, 6)), n_fold),
        workload=Workload(objective=BRANIN, durations=durations, failures=failures, n_epochs=2),
        suggestion_cost=draw(costs),
        coordinator_cost=draw(costs),
    )


@given(plans())
@settings(deadline=None, max_examples=examples(60))
def test_every_trial_ends_once_and_the_journal_tells_the_same_story(plan):
    result, ledger, events = run(plan)
    n_trials = plan.search.num_iterations
    assert sum(result.n_trials.values()) == ledger.n_ended == n_trials
    assert all(assignment.end is not None for assignment in ledger.assignments)
    assert 0 < result.utilization < 1 + 1e-9
    assert result.team_utilization <= result.utilization + 1e-9 or plan.search.n_fold > 1
    assert result.utilization_searching is None or 0 < result.utilization_searching < 1 + 1e-9
    times = [event.time_s for event in events]
    assert times == sorted(times)
    by_team = {}
    for assignment in ledger.assignments:
        by_team.setdefault(assignment.team, []).append((assignment.assigned_at_s, assignment.ended_at_s))
    for spans in by_team.values():
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert vars(Ledger(events)) == vars(ledger)


def test_a_block_that_never_answers_is_a_bug_that_is_told_and_no_hang(tmp_path, monkeypatch):
    monkeypatch.setattr(VirtualMaster, "handle_order", lambda self, message: None)
    with pytest.raises(ProtocolError, match="Nothing is on its way"):
        Simulation(plan_of(2, 4), started(BRANIN.space), Journal(tmp_path / "journal.jsonl")).run()


def n_lines(plan):
    """Lines of Python that a simulation executes, every turn of a loop anew."""
    counted = 0

    def count(frame, event, argument):
        nonlocal counted
        counted += event == "line"
        return count

    with simulation_of(plan) as (simulation, _):
        before = sys.gettrace()
        sys.settrace(count)
        try:
            simulation.run()
        finally:
            sys.settrace(before)
    return counted


@pytest.mark.proof
def test_work_per_trial_does_not_grow_with_blocks_or_trials():
    few = n_lines(plan_of(10, 100)) / 100
    assert n_lines(plan_of(100, 100)) / 100 < 1.2 * few
    assert n_lines(plan_of(10, 1000)) / 1000 < 1.2 * few
