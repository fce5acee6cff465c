import csv
import json
import shutil
from pathlib import Path

import pytest

from nnlo_opt.app.reporting.results import read_ledger, summarise, write_results
from nnlo_opt.app.reporting.table import trials_table
from nnlo_opt.app.run.start.identity import check_same
from nnlo_opt.core.comm import messages as msg
from nnlo_opt.core.comm.topology import Topology
from nnlo_opt.core.coordinator.instructions import Ask, Begin, FinishRun, SearchPlan, Send
from nnlo_opt.core.coordinator.outcomes import report_of
from nnlo_opt.core.coordinator.state import CoordinatorState
from nnlo_opt.core.search.base import History
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.journal import Journal
from nnlo_opt.core.trials.run_directory import RunRequest, open_run
from nnlo_opt.engine.search.process import InlineSearch
from tests.helpers.steps import check

HERE = Path(__file__).parent


@pytest.fixture
def run(tmp_path):
    """A run directory with a copy of the journal."""
    path = tmp_path / "old"
    path.mkdir()
    shutil.copy(HERE / "journal-format-1.jsonl", path / "journal.jsonl")
    return path


def test_it_holds_every_type_of_event_that_format_1_has(run):
    journal = Journal(run / "journal.jsonl")
    journal.close()
    assert len(journal.events) == 48
    assert {type(event) for event in journal.events} == {
        ev.RunStarted,
        ev.TrialSuggested,
        ev.FoldAssigned,
        ev.FoldBegan,
        ev.EpochEnded,
        ev.AssignmentFinished,
        ev.AssignmentFailed,
        ev.AssignmentStopped,
        ev.AssignmentLost,
        ev.TrialCompleted,
        ev.TrialFailed,
        ev.RunCompleted,
    }
    assert (run / "journal.jsonl").read_bytes() == (HERE / "journal-format-1.jsonl").read_bytes()


def test_its_trials_are_what_they_were(run):
    ledger = read_ledger(run)
    assert [trial.state for trial in ledger.trials] == ["complete", "failed", "complete", "complete"]
    assert ledger.trials[0].point == {"n_units": 1, "activation": "relu", "train.learning_rate": 0.025340979386006067}
    assert ledger.trials[1].reason.endswith("ValueError: n_units = 2 cannot be.")
    assert [ledger.trials[2].n_attempts(fold) for fold in (0, 1)] == [2, 2]
    assert ledger.best("min").number == 2
    assert ledger.best("min").figure_of_merit == 2.1969265937805176
    assert ledger.completed_because == "all 4 trials are done"
    assert (ledger.identity.seed, ledger.identity.n_fold) == (3, 2)
    assert "figure of merit" in trials_table(ledger)


def test_its_reports_are_what_they_were(run):
    write_results(run, read_ledger(run))
    files = (HERE / "results-format-1.csv", run / "results.csv")
    (before, *old_rows), (now, *rows) = (list(csv.reader(path.read_text().splitlines())) for path in files)
    assert now == [*before, "figure_so_far", "time_s", "m:loss", "m:val_loss"]
    assert [row[: len(before)] for row in rows] == old_rows
    assert rows[0][len(before) :] == ["", "1.3469059467315674", "2.651868512233098", "4.014799038569132"]
    summary = json.loads((run / "summary.json").read_text())
    assert summary == summarise(read_ledger(run))
    assert summary["n_starts"] == 2
    assert summary["wall_s"] == 2.669522523880005
    assert summary["block_utilization"] == 1.0


def test_the_golden_journal_is_continued(run):
    directory = open_run(RunRequest(root=run.parent, name=run.name, restore=True), run.name)
    request = RunRequest(root=run.parent, name=run.name, restore=True)
    check_same(directory.ledger.identity, directory.ledger.identity, str(run), request)
    plan = SearchPlan(num_iterations=5, n_fold=2)
    state = CoordinatorState(plan, Topology.plan(5, 4, 2), directory.ledger)
    directory.ledger.apply(ev.RunStarted(time_s=20.0, unix_s=0.0, n_ranks=5, n_blocks=1, identity={}))
    instructions = state.handle(Begin(), 20.0)
    assert instructions[-1] == Ask(number=4)
    history = History(directory.ledger.identity.space)
    for tell in instructions[:-1]:
        history.record(tell.trial, tell.point, tell.state, tell.value)
    assert history.n_suggested == history.n_distinct == 4
    directory.journal.append([ev.RunCompleted(time_s=21.0, reason="enough")])
    directory.close()
    assert read_ledger(run).completed_because == "enough"


@pytest.mark.parametrize("n_lines", range(1, 48))
def test_the_golden_journal_is_continued_wherever_it_was_cut(run, n_lines):
    path = run / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:n_lines]) + lines[n_lines][:-5])
    ledger = read_ledger(run)
    state = CoordinatorState(SearchPlan(num_iterations=4, n_fold=2), Topology.plan(5, 4, 2), ledger)
    instructions = state.handle(Begin(), 20.0)
    check(state)
    orders = [i.message for i in instructions if isinstance(i, Send)]
    assert all(isinstance(order, msg.RunFold) for order in orders)
    # Each open trial goes on, and the search does unless it was over.
    assert {order.trial for order in orders} == {trial.number for trial in ledger.trials if not trial.state.ended}
    assert orders or isinstance(instructions[-1], Ask | FinishRun)


def test_a_run_with_a_bound_from_before_figures_were_told_is_continued_with_its_figures(tmp_path):
    """Ten trials of two integers, whose product is bounded: six are infeasible."""
    shutil.copy(HERE / "journal-bounds.jsonl", tmp_path / "journal.jsonl")
    ledger = read_ledger(tmp_path)
    told = [report_of(trial, SearchPlan(num_iterations=30)) for trial in ledger.trials]
    assert [tell.outcomes for tell in told] == [{"memory": t.point["w"] * t.point["b"] / 1000} for t in ledger.trials]
    assert [tell.state for tell in told].count("failed") == 6
    search = InlineSearch()
    options = {"n_initial_points": ledger.identity.n_initial_points, "outcome_constraints": ledger.identity.constraints}
    search.start("bayesian", ledger.identity.space, ledger.identity.seed, options)
    for tell in told:
        search.record(
            [
                {"trial": tell.trial, "point": tell.point, "state": tell.state, "value": tell.value}
                | {"outcomes": tell.outcomes}
            ]
        )
    search.request_suggestion(0)
    point = search.poll().point
    assert 10 < point["w"] * point["b"] / 1000 <= 20
