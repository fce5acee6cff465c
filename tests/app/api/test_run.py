import doctest

import pytest

import nnlo_opt
from nnlo_opt import load_run
from nnlo_opt.core.base.errors import JournalError, TrialError
from nnlo_opt.core.trials import events as ev
from tests.helpers.launcher import python
from tests.helpers.recorded import TRIALS, events_of, of_trial, started
from tests.helpers.refusals import check_refused
from tests.helpers.stories import write_journal

#: what examples may use
PUBLIC = {"nnlo_opt": nnlo_opt, "Integer": nnlo_opt.Integer}


@pytest.fixture
def write(here):
    """Writes the journal of these events to checkpoints/CP, in the working folder."""
    (here / "checkpoints/CP").mkdir(parents=True)
    yield lambda events: write_journal(here / "checkpoints/CP", events)
    import matplotlib.pyplot

    matplotlib.pyplot.close("all")


def test_the_examples_of_the_docstrings_are_true(write):
    write(events_of())
    found = doctest.testmod(nnlo_opt.app.api.run, optionflags=doctest.ELLIPSIS, extraglobs=PUBLIC)
    assert (found.failed, found.attempted) == (0, 17)


def test_a_run_has_its_best_trial_and_its_tables(write):
    run = load_run(write(events_of()))
    assert run.best == run.trial(0)
    assert (run.best_parameters["lr"], run.figure_of_merit, run.ended_because) == (0.01, 0.25, "all trials are done")
    assert run.pareto == []
    assert [len(run.to_dataframe(table)) for table in ("trials", "folds", "epochs", "assignments")] == [6, 8, 18, 12]


@pytest.mark.parametrize("events", [[], [started()], events_of([TRIALS[3]])], ids=["no run", "no trial", "failed"])
def test_a_run_without_a_complete_trial_has_no_best_one_and_can_be_looked_at(write, events):
    run = load_run(write(events))
    assert run.best is None
    with pytest.raises(TrialError, match="No trial succeeded"):
        _ = run.figure_of_merit
    assert "none succeeded" in repr(run)
    assert "<img " in run._repr_html_()
    check_refused("must have a complete trial to have a best model", run.best_model)


def test_a_run_at_work_is_read_again(write, tmp_path):
    write([started(), *of_trial(0, *TRIALS[0])])
    run = load_run("checkpoints/CP")
    assert "dead, 1 complete" in repr(run)
    write([*of_trial(1, *TRIALS[1]), ev.TrialSuggested(time_s=30.0, trial=2, point={})])
    journal = tmp_path / "checkpoints/CP/journal.jsonl"
    n_lines = len(journal.read_bytes().splitlines())
    with journal.open("ab") as file:
        file.write(b'{"seq":%d,"crc' % n_lines)  # a line that is being written
    assert len(run.trials) == 1
    assert len(run.refresh().trials) == 3
    assert run.to_dataframe()["state"].tolist() == ["complete", "complete", "pending"]


def test_the_view_of_a_notebook_is_escaped_and_holds_all_it_needs(write, tmp_path):
    point = {"lr": 0.1, "<script>": "<b>&</b>"}
    path = write(events_of([(point, 0.5), (point, "no <i>memory</i>")])).rename(tmp_path / "<u>CP")
    page = load_run(path)._repr_html_()
    for text in ("<script>", "<b>&</b>", "<i>", "<u>"):
        assert text not in page.replace("<div><b>Run ", "")
    assert "&lt;script&gt;" in page
    assert "http" not in page
    assert "finished (all trials are done): 1 complete, 1 failed." in page


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda run: run.trial(6), "Received: 6, but `checkpoints/CP` has 6 trials."),
        (lambda run: run.trial(-1), "Received: -1"),
        (lambda run: run.trial("best"), "Received: 'best'"),
        (lambda run: run.model(17), "Received: 17"),
        (lambda run: run.to_dataframe("trial"), "Received: 'trial'. Did you mean `trials`?"),
        (lambda run: load_run("checkpoints"), "name a run in it, such as `checkpoints/CP`."),
        (lambda run: load_run("elsewhere"), "Received: `elsewhere`, which does not; correct the path."),
        (lambda run: run.best_model(), "/nowhere/net.py"),
    ],
)
def test_a_wrong_request_is_refused(write, call, words):
    write(events_of())
    check_refused(words, call, load_run("checkpoints/CP"))


def test_a_damaged_journal_is_refused(write):
    path = write(events_of()) / "journal.jsonl"
    path.write_bytes(path.read_bytes()[9:])
    with pytest.raises(JournalError, match="damaged in line 1"):
        load_run(path.parent)


def test_a_run_is_looked_at_without_mpi_and_without_a_framework(write):
    write(events_of())
    program = (
        "import sys; from nnlo_opt import load_run; run = load_run('checkpoints/CP'); run.to_dataframe('epochs'); "
        "run.plot_blocks(); run._repr_html_(); print({'mpi4py', 'tensorflow', 'keras', 'torch'} & set(sys.modules))"
    )
    assert python(program).expect(0).out == "set()\n"
