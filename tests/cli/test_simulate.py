import json

import pytest

import nnlo_opt
from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.cli import tool
from nnlo_opt.core.base.errors import EXIT_FAILURE, EXIT_OK
from nnlo_opt.core.search.random import RandomSearch

MODULE = """
from nnlo_opt.space import Real

def loss(point):
    return (point["x"] - 0.25) ** 2

loss.parameter_range = [Real(0.0, 1.0, name="x")]
loss.optimum = 0.0

def curve(point):
    return [1.0, 0.5, point["x"]]

def slow(point):
    return [point["x"] + 1 / epoch for epoch in range(1, 10)]

slow.parameter_range = loss.parameter_range

def seconds(point):
    return 100.0 * point["x"]

def fails(point):
    raise ValueError("never works")

fails.parameter_range = loss.parameter_range

def three(parameters, comm, report):
    return 0.0
"""


@pytest.fixture
def here(here):
    (here / "mine.py").write_text(MODULE)
    return here


@pytest.fixture
def results(printed):
    return lambda *words: [json.loads(line) for line in printed("simulate", "--json", *words).splitlines()]


def test_one_object_for_every_number_of_blocks(here, results):
    one, four = results("--blocks", 1, 4, "--trials", 8, "--duration", "constant:10")
    assert (one["n_blocks"], one["makespan_s"], one["utilization"]) == (1, 80.0, 1.0)
    assert (four["n_blocks"], four["makespan_s"], four["team_utilization"]) == (4, 20.0, 1.0)
    assert one["n_trials"] == {"complete": 8}
    assert one["regret"] == four["regret"] > 0
    assert one["objective"] == "hartmann6"
    assert not list(here.glob("**/journal.jsonl")), "it was to be temporary"


def test_a_pruner_pauses_trials_in_virtual_time(here, results):
    """Nine trials of 9 epochs of 1 s on one block, with 2 s for a start: rungs after 1 and 3 epochs."""
    options = ("--blocks", 1, "--objective", "mine.py:slow", "--trials", 9, "--duration", "constant:9", "--startup", 2)
    (plain,), (pruned,) = results(*options), results(*options, "--pruner", "asha")
    assert plain["makespan_s"] == 9 * 11.0
    assert pruned["n_trials"] == {"complete": 1, "pruned": 8}
    n_promoted = 3 + 1
    assert 9 * 3.0 + 3 * 2.0 + 6.0 <= pruned["makespan_s"] <= 9 * 3.0 + 3 * 2.0 + 6.0 + n_promoted * 2.0
    assert plain["best"][-1]["figure_of_merit"] == pruned["best"][-1]["figure_of_merit"]


@pytest.mark.usefixtures("reports_here")
def test_a_run_with_bounds_is_simulated_without_them_and_a_line_says_so(here, capsys):
    run = {"checkpoint": "checkpoints/R", "hyper_opt": "random", "objective": "loss:min"}
    space, bounds = {"x": nnlo_opt.Real(0, 1)}, ["size<=5", "size>1"]
    shown = nnlo_opt.optimize(
        lambda x: {"loss": x, "size": 9 * x}, space, outcome_constraint=bounds, num_iterations=9, **run
    )
    assert 0 < sum(trial.feasible for trial in shown.trials) < 9
    assert tool.main(["simulate", "--run", "R", "--blocks", "1"], "nnlo-opt") == EXIT_OK
    assert "Bounds are not simulated: trials that break size<=5 and size>1 count" in capsys.readouterr().err


@pytest.mark.usefixtures("reports_here")
def test_the_trials_of_a_run_are_searched_again_with_their_figures_and_times(here, results, printed, refused):
    def objective(x, report):
        for epoch in range(1, 10):
            report(epoch, x + 1 / epoch)
        return x

    run = {"checkpoint": "checkpoints/R", "hyper_opt": "random"}
    nnlo_opt.optimize(objective, {"x": nnlo_opt.Real(0, 1)}, num_iterations=9, **run)
    trials = read_ledger(here / "checkpoints/R").trials
    (plain,), (pruned,) = results("--blocks", 1, "--run", "R"), results("--blocks", 1, "--run", "R", "--pruner", "asha")
    assert (plain["n_trials"], plain["regret"], pruned["regret"]) == ({"complete": 9}, 0.0, 0.0)
    assert plain["makespan_s"] >= sum(trial.folds[0].train_s for trial in trials)
    assert pruned["n_trials"] == {"complete": 1, "pruned": 8}
    assert "in their order, pruner freeze-thaw;" in printed("simulate", "--run", "R", "--hyper-opt", "freeze-thaw")
    assert "`--epochs` as well" in refused("simulate", "--run", "R", "--epochs", "3")
    assert results("--blocks", 1, "--run", "R", "--trials", 4)[0]["n_trials"] == {"complete": 4}
    assert "must be at most 9, the complete trials" in refused("simulate", "--run", "R", "--trials", "10")
    long = {"checkpoint": "checkpoints/L", "hyper_opt": "random"}
    nnlo_opt.optimize(lambda x: x, {"x": nnlo_opt.Real(0, 1)}, num_iterations=101, **long)
    assert results("--blocks", 1, "--run", "L")[0]["n_trials"] == {"complete": 101}


def test_the_table_has_a_row_for_every_number_of_blocks_and_says_what_the_columns_are(printed):
    out = printed("simulate", "--blocks", "1", "3", "--trials", "6", "--duration", "constant:10")
    rows = [line.split() for line in out.splitlines() if line.split()[:1] in (["1"], ["3"])]
    assert [row[:2] for row in rows] == [["1", "0:01:00"], ["3", "0:00:20"]]
    assert "searching: while trials were left to begin" in out


def test_a_single_number_of_blocks_shows_how_the_best_figure_fell(here, printed):
    lines = printed("simulate", "--blocks", "2", "--trials", "30", "--objective", "mine.py:loss").splitlines()
    head = next(i for i, line in enumerate(lines) if line.split()[:3] == ["time", "ended", "trial"])
    improvements = [line.split() for line in lines[head + 1 : lines.index("", head)]]
    regrets = [float(line[-1]) for line in improvements]
    assert len(regrets) >= 2
    assert regrets == sorted(regrets, reverse=True)


def test_functions_of_a_file_and_of_a_module_give_values_and_durations(here, results):
    (space := here / "wide.py").write_text(
        "from nnlo_opt.space import Real\nparameter_range = [Real(2.0, 3.0, name='x')]\n"
    )
    options = ["--search-space", space, "--duration", "mine.py:seconds", "--blocks", 1, "--trials", 3]
    (result,) = results("--objective", "mine:curve", *options, "--out", "kept")
    ledger = read_ledger(here / "kept")
    assert [trial.figure_of_merit for trial in ledger.trials] == [trial.point["x"] for trial in ledger.trials]
    assert all(2.0 <= trial.figure_of_merit <= 3.0 for trial in ledger.trials)
    assert result["makespan_s"] == pytest.approx(sum(100.0 * trial.point["x"] for trial in ledger.trials))
    assert all(trial.folds[0].n_epochs == 3 for trial in ledger.trials)
    assert result["regret"] is None


def test_durations_of_a_table_are_those_of_a_run(here, results):
    (here / "results.csv").write_text("trial,state,train_s\n0,complete,10\n1,failed,\n2,complete,30\n")
    results("--duration", "table:results.csv", "--blocks", 2, "--trials", 40, "--out", "kept")
    took = {round(a.ended_at_s - a.assigned_at_s, 6) for a in read_ledger(here / "kept").assignments}
    assert took == {10.0, 30.0}


def test_a_kept_journal_is_one_that_show_reads_and_is_never_touched_again(here, refused, printed):
    options = ["simulate", "--trials", "5", "--out", "kept"]
    printed(*options, "--blocks", "2")
    before = (here / "kept" / "journal.jsonl").read_bytes()
    assert "Finished (all trials are done): 5 complete." in printed("show", "kept")
    assert "`--out` must be a directory without a journal" in refused(*options, "--blocks", "2")
    assert (here / "kept" / "journal.jsonl").read_bytes() == before
    printed(*options, "--blocks", "2", "3")
    assert (here / "kept" / "blocks-3" / "journal.jsonl").is_file()


def test_a_search_of_which_nothing_succeeds_has_the_code_of_a_failure(here, printed):
    assert "No trial succeeded. The first reason: ValueError: never works" in printed(
        "simulate", "--objective", "mine.py:fails", "--trials", "3", code=EXIT_FAILURE
    )


def test_a_search_algorithm_that_breaks_down_is_told_with_what_it_raised(here, monkeypatch, printed):
    monkeypatch.setattr(RandomSearch, "suggest", lambda self, history: 1 / 0)
    err = printed("simulate", "--trials", "3", code=EXIT_FAILURE)
    assert err.startswith("The search algorithm has failed:")
    assert "ZeroDivisionError" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--blocks 0", "`--blocks` must be a whole number, at least 1. Received: 0."),
        ("--trials many", "`--trials` must be a whole number, at least 1. Received: many."),
        ("--epochs 0", "`--epochs` must be a whole number, at least 1. Received: 0."),
        ("--failures 2", "`--failures` must be a number from 0 to 1. Received: 2."),
        ("--startup inf", "`--startup` must be a finite number of seconds, at least 0. Received: inf."),
        ("--hyper-opt magic", "must be one of"),
        ("--duration constant", "`--duration` must be constant:SECONDS"),
        ("--duration constant:1:2", "`--duration` must be constant:SECONDS"),
        ("--duration lognormal:60", "`--duration` must be constant:SECONDS"),
        ("--duration constant:0", "a median above 0 seconds"),
        ("--duration lognormal:1:-1", "a sigma of at least 0"),
        ("--duration table:none.csv", "must be a CSV file. Received: `none.csv`"),
        ("--duration table:/dev/zero", "must be a CSV file. Received: `/dev/zero` (not a regular file)"),
        ("--duration table:mine.py", "must have a column `seconds` or `train_s`"),
        ("--duration mine.py:nothing", "must define a function `nothing`"),
        ("--duration nowhere.py:seconds", "'nowhere.py', which is no file"),
        ("--objective loss", "`--objective` must be hartmann6, branin, or a function"),
        ("--objective mine.py:three", "must take one argument, the point as a dictionary"),
        ("--objective mine.py:curve", "mine.py:curve has no search space"),
        ("--objective no_such_module_here:loss", "A function must be given as FILE.py:FUNCTION or MODULE:FUNCTION"),
        ("--objective broken.py:loss", "must import without an error"),
        ("--objective broken:loss", "must import without an error"),
        ("--search-space other.py", "A search space of hartmann6 must have the parameters x1, x2"),
        ("--suggestion-cost dear", "`--suggestion-cost` must be free, measured, or seconds"),
        ("--suggestion-cost nan", "must be free, measured, or seconds, at least 0. Received: nan."),
        ("--coordinator-cost -1", "`--coordinator-cost` must be free, measured, or seconds, at least 0. Received: -1."),
        ("--pruner asha", "`--pruner asha` needs 3 epochs at least"),
        ("--pruner-eta 3", "is for `--pruner asha` or `--pruner hyperband`"),
        ("--run nowhere", "must hold a journal"),
        ("--out mine.py", "`--out` must be a writable directory"),
        ("--nonsense", "must be an option of nnlo-opt simulate or its value. Received: --nonsense"),
    ],
)
def test_a_wrong_request_is_one_sentence_and_code_2(here, arguments, words, refused):
    (here / "broken.py").write_text("import no_such_thing_anywhere\n")
    (here / "other.py").write_text("from nnlo_opt.space import Real\nspace = [Real(0.0, 1.0, name='x')]\n")
    assert words in refused("simulate", *arguments.split())
