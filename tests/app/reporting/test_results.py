import csv
import io
import json

import pytest

from nnlo_opt.app.reporting.results import read_ledger, results_frame, write_results
from nnlo_opt.app.reporting.table import pareto_table, trials_table
from nnlo_opt.core.base.errors import JournalError
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.sync_mark import MARK_NAME
from tests.helpers.stories import assigned, completed, finished, write_journal
from tests.helpers.told_runs import Story

#: as users read them: nothing is renamed, reordered or removed
DOCUMENTED = (
    "trial,state,figure_of_merit,figure_of_merit_std,n_folds,epochs,attempt,block,n_ranks,"
    "assigned_at_s,started_at_s,finished_at_s,train_s,reason"
)

#: columns behind the parameters
LAST = ("figure_so_far", "time_s")

EVENTS = [
    ev.RunStarted(time_s=0.0, unix_s=1000.0, n_ranks=5, n_blocks=2, identity={"direction": "min"}),
    ev.TrialSuggested(time_s=1.0, trial=0, point={"n": 8, "rate": 1e-3, "act": "relu", "sizes": [8, 16]}),
    assigned(0),
    ev.FoldBegan(time_s=1.5, assignment=0),
    ev.AssignmentLost(time_s=2.0, assignment=0),
    assigned(1, time_s=2.0, attempt=2, block=2, team=1),
    ev.FoldBegan(time_s=2.5, assignment=1, epoch=1),
    finished(1, 0.25, 4.0, metrics={"loss": 1.0}, n_epochs=3, train_s=1.5),
    assigned(2, time_s=4.0, fold=1, block=2, team=1),
    ev.FoldBegan(time_s=4.5, assignment=2),
    finished(2, 0.75, 6.0, metrics={"loss": 1.0}, n_epochs=2, train_s=1.25),
    completed(0, 0.5, 6.0, 0.25),
    ev.TrialSuggested(time_s=6.0, trial=1, point={"n": 9, "rate": 0.1, "act": None, "sizes": [4]}),
    assigned(3, 1, 6.0),
    ev.FoldBegan(time_s=6.5, assignment=3),
    ev.EpochEnded(time_s=7.0, assignment=3, epoch=1, metrics={"loss": 1.0}),
    ev.AssignmentFailed(time_s=8.0, assignment=3, reason="fold 0:\nno memory, it says"),
    ev.TrialFailed(time_s=8.0, trial=1, reason="fold 0:\nno memory, it says"),
    ev.TrialSuggested(time_s=8.0, trial=2, point={"n": 10, "rate": 0.2, "act": "tanh", "sizes": []}),
]


@pytest.fixture
def run_directory(tmp_path):
    return write_journal(tmp_path, EVENTS)


def test_metrics_of_a_finished_fold_are_those_of_its_result_and_not_of_its_last_epoch():
    """Its weights may be those of an earlier epoch."""
    epoch = ev.EpochEnded(time_s=3.0, assignment=1, epoch=3, metrics={"loss": 9.0})
    finish = next(i for i, event in enumerate(EVENTS) if isinstance(event, ev.AssignmentFinished))
    assert results_frame(Ledger([*EVENTS[:finish], epoch, *EVENTS[finish:]]))["m:loss"][0] == 1.0


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_the_columns_are_the_documented_ones_and_then_the_parameters(run_directory):
    write_results(run_directory, read_ledger(run_directory))
    header = (run_directory / "results.csv").read_text().splitlines()[0]
    assert header == f"{DOCUMENTED},p:n,p:rate,p:act,p:sizes,figure_so_far,time_s,m:loss"


def test_there_is_one_row_a_trial_with_what_is_known_of_it(run_directory):
    write_results(run_directory, read_ledger(run_directory))
    text = (run_directory / "results.csv").read_text()
    assert text.splitlines()[1] == '0,complete,0.5,0.25,2,3,2,2,2,1.0,1.5,6.0,2.75,,8,0.001,relu,"[8, 16]",,4.0,1.0'
    _, failed, pending = rows_of(text)
    assert failed["state"] == "failed"
    assert failed["reason"] == "fold 0:\nno memory, it says"
    assert (failed["figure_of_merit"], failed["train_s"], failed["p:act"]) == ("", "", "")
    assert (failed["n_folds"], failed["epochs"], failed["finished_at_s"]) == ("0", "1", "8.0")
    assert pending["state"] == "pending"
    assert (pending["attempt"], pending["block"], pending["assigned_at_s"]) == ("0", "", "")


def test_a_paused_and_a_pruned_trial_have_their_last_figure_metrics_and_time():
    story = Story()
    for figure, loss in [(0.5, 2.0), (0.25, 4.0)]:
        trial = story.suggest(0.0)
        for fold in (0, 1):
            number = story.assign(1.0, trial, fold=fold)
            story.begin(2.0, number)
            reported = {"metrics": {"loss": loss + fold}, "figure_of_merit": figure}
            story.apply(ev.EpochEnded(time_s=4.0, assignment=number, epoch=1, **reported))
            story.apply(ev.AssignmentPaused(time_s=5.0, assignment=number, epoch=1))
        story.apply(ev.TrialPaused(time_s=5.0, trial=trial, figure_of_merit=figure))
    story.apply(ev.TrialPruned(time_s=6.0, trial=1, figure_of_merit=0.25, reason="not promoted: rank 2 of 2"))
    rows = rows_of(results_frame(story.ledger).to_csv(index=False))
    names = ("state", "figure_of_merit", "train_s", "figure_so_far", "time_s", "m:loss")
    assert [tuple(row[name] for name in names) for row in rows] == [
        ("paused", "", "", "0.5", "8.0", "2.5"),
        ("pruned", "", "", "0.25", "8.0", "4.5"),
    ]
    table = trials_table(story.ledger)
    assert [line.split() for line in table.splitlines()[-2:]] == [
        ["0", "(0.5)", "1", "8.0", "paused"],
        ["1", "(0.25)", "1", "8.0", "pruned"],
    ]


def test_numbers_keep_all_their_digits():
    story = Story()
    story.suggest(0.0, x=0.1 + 0.2, big=2**60, flag=True)
    row = rows_of(results_frame(story.ledger).to_csv(index=False))[0]
    assert float(row["p:x"]) == 0.1 + 0.2
    assert int(row["p:big"]) == 2**60
    assert row["p:flag"] == "True"


def test_a_run_without_trials_has_a_header_and_nothing_else(tmp_path):
    write_results(tmp_path, Ledger())
    assert (tmp_path / "results.csv").read_text() == DOCUMENTED + ",figure_so_far,time_s\n"


def test_writing_again_gives_the_same_files_and_leaves_nothing_beside_them(run_directory):
    ledger = read_ledger(run_directory)
    write_results(run_directory, ledger)
    first = {path.name: path.read_bytes() for path in run_directory.iterdir()}
    write_results(run_directory, read_ledger(run_directory))
    assert {path.name: path.read_bytes() for path in run_directory.iterdir()} == first
    assert set(first) == {"journal.jsonl", MARK_NAME, "results.csv", "summary.json"}
    assert json.loads(first["summary.json"])["best"]["trial"] == 0


def test_reading_a_journal_with_a_torn_tail_changes_nothing(run_directory):
    journal = run_directory / "journal.jsonl"
    (run_directory / MARK_NAME).unlink()
    torn = journal.read_bytes()[:-9]
    journal.write_bytes(torn)
    assert len(read_ledger(run_directory).trials) == 2
    assert journal.read_bytes() == torn


def test_a_damaged_journal_is_refused(run_directory):
    journal = run_directory / "journal.jsonl"
    journal.write_bytes(journal.read_bytes()[9:])
    with pytest.raises(JournalError, match="damaged in line 1"):
        read_ledger(run_directory)


def test_a_parameter_that_a_trial_has_not_is_an_empty_cell_in_the_order_of_the_space(tmp_path):
    space = {"parameters": [{"name": name} for name in ("momentum", "optimizer", "never")]}
    story = Story(search_space=space)
    story.suggest(1.0, optimizer="adam")
    story.suggest(1.0, momentum=3, optimizer="sgd")
    write_results(tmp_path, story.ledger)
    rows = rows_of((tmp_path / "results.csv").read_text())
    assert list(rows[0])[len(DOCUMENTED.split(",")) :] == ["p:momentum", "p:optimizer", "p:never", *LAST]
    assert [[row[f"p:{name}"] for name in ("momentum", "optimizer", "never")] for row in rows] == [
        ["", "adam", ""],
        ["3", "sgd", ""],
    ]


# ---------------------------------------------------------------- several objectives


def ledger_of_two_objectives():
    story = Story(direction="max", objectives=["val_acc:max", "n_weights:min"])
    for acc, size in [(0.9, 100.0), (0.8, 10.0), (0.7, 50.0)]:
        trial = story.suggest(1.0, n=len(story.ledger.trials))
        means, spreads = {"val_acc": acc, "n_weights": size}, {"val_acc": 0.5, "n_weights": 0.0}
        story.complete(2.0, trial, acc, 0.5, objectives=means, objectives_std=spreads)
    story.suggest(3.0, n=3)
    return story.ledger


def test_several_objectives_have_columns_between_the_documented_ones_and_the_parameters(tmp_path):
    write_results(tmp_path, ledger_of_two_objectives())
    text = (tmp_path / "results.csv").read_text()
    header = text.splitlines()[0]
    assert header == f"{DOCUMENTED},pareto,o:val_acc,o:val_acc_std,o:n_weights,o:n_weights_std,p:n,figure_so_far,time_s"
    rows = rows_of(text)
    assert [row["pareto"] for row in rows] == ["True", "True", "False", "False"]
    assert [row["o:n_weights"] for row in rows] == ["100.0", "10.0", "50.0", ""]
    assert rows[0]["figure_of_merit"] == rows[0]["o:val_acc"] == "0.9"


def test_the_summary_has_the_pareto_set(tmp_path):
    write_results(tmp_path, ledger_of_two_objectives())
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["objectives"] == [{"name": "val_acc", "direction": "max"}, {"name": "n_weights", "direction": "min"}]
    assert [(entry["trial"], entry["objectives"]) for entry in summary["pareto"]] == [
        (0, {"val_acc": 0.9, "n_weights": 100.0}),
        (1, {"val_acc": 0.8, "n_weights": 10.0}),
    ]
    assert summary["best"]["trial"] == 0


def test_the_tables_show_the_objectives_and_the_pareto_set():
    ledger = ledger_of_two_objectives()
    lines = [line for line in trials_table(ledger).splitlines() if line.strip()]
    assert lines[1].split()[:3] == ["trial", "val_acc", "n_weights"]
    assert [line.split()[0] for line in lines if line.endswith("Pareto")] == ["0", "1"]
    pareto = pareto_table(ledger)
    assert pareto.startswith("Pareto set of val_acc:max, n_weights:min: 2 trials")
    assert [line.split()[:3] for line in pareto.splitlines()[-2:]] == [["0", "0.9", "100"], ["1", "0.8", "10"]]


def test_a_run_whose_time_was_over_says_so_and_is_not_complete(tmp_path):
    ledger = ledger_of_two_objectives()
    ledger.apply(ev.RunPreempted(time_s=9.0, reason="the walltime is over"))
    write_results(tmp_path, ledger)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert (summary["complete"], summary["reason"]) == (False, "the walltime is over")
