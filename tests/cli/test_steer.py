"""`nnlo-opt enqueue` and `nnlo-opt stop`: what they write, what they say, what they refuse."""

import json
import threading
from contextlib import closing

import pytest

from nnlo_opt.app.run.start.inbox import points_waiting
from nnlo_opt.cli import tool
from nnlo_opt.core.base.errors import EXIT_FAILURE
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.owner import this_process
from nnlo_opt.core.trials.run_lock import RunLock
from nnlo_opt.space import Categorical, Integer, Real, Space, When
from tests.helpers.shared_run import shared_run
from tests.helpers.stories import START, write_journal

SPACE = Space(
    [
        Real(1e-4, 1.0, "log-uniform", name="lr"),
        Integer(1, 9, name="n"),
        Categorical(["a", "b"], name="kind"),
        Integer(1, 3, name="depth", condition=When("kind", "b")),
    ]
)
TRIED = {"lr": 0.5, "n": 2, "kind": "a"}
EVENTS = [
    START.replaced(identity={"search_space": SPACE.to_json()}, settings={"plan": {"num_iterations": 9}}),
    ev.TrialSuggested(time_s=1.0, trial=0, point=TRIED),
    ev.FoldAssigned(time_s=1.0, assignment=0, trial=0, fold=0, attempt=1, block=1, team=0, n_ranks=2),
    ev.TrialSuggested(time_s=2.0, trial=1, point={**TRIED, "n": 4}),
    ev.TrialFailed(time_s=2.0, trial=1, reason="no"),
]
OVER = ev.RunCompleted(time_s=3.0, reason="all trials are done")
TRAINING = [START.replaced(identity={"search_space": None}), *EVENTS[1:3]]


@pytest.fixture
def run(tmp_path):
    """Writes a journal of these events; returns the run directory."""
    return lambda events=EVENTS: write_journal(tmp_path, events)


def test_a_point_or_a_part_of_one_waits_for_the_next_start_of_an_idle_run(run, refused, printed):
    path = run()
    said = f"Enqueued lr=0.01 n=7: nobody works on `{path}` now, so the next start tries it first.\n"
    assert printed("enqueue", path, "n=7", "lr=0.01") == said
    printed("enqueue", path, "depth=2")
    assert list(points_waiting(path)) == [{"lr": 0.01, "n": 7}, {"kind": "b", "depth": 2}]
    assert "Received: lr=0.01, which waits in `" in refused("enqueue", path, "lr=1e-2")


def test_a_constraint_is_asked_in_the_search_and_never_by_the_command(run, tmp_path, printed, refused):
    (tmp_path / "space.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'x')")
    constraint = {"sha256": "0", "source": str(tmp_path / "space.py"), "example": TRIED}
    path = run([START.replaced(identity={"search_space": SPACE.to_json() | {"constraint": constraint}}), *EVENTS[1:]])
    assert "tries it first, unless its constraint refuses it" in printed("enqueue", path, "n=7")
    with closing(RunLock(path, 0.0)):
        decline = threading.Timer(0.3, lambda: [file.unlink() for file in (path / "inbox").iterdir()])
        decline.start()
        assert "which the search has refused; its output gives the reason" in refused(
            "enqueue", path, "n=8", "--wait", "60"
        )
        decline.join()
    assert not (tmp_path / "ran").exists()


def test_a_point_waits_for_a_run_that_has_not_begun_if_that_is_what_is_meant(tmp_path, refused, printed):
    path = tmp_path / "later" / "CP"
    assert "must hold a journal.jsonl" in refused("enqueue", path, "n=1")
    said = f"Enqueued n=1: the first start of `{path}` checks it, and tries it first.\n"
    assert printed("enqueue", path, "n=1", "--new") == said
    assert "which waits in" in refused("enqueue", path, "n=1", "--new")
    assert "NAME=VALUE" in refused("enqueue", path, "n", "--new")
    assert list(points_waiting(path)) == [{"n": 1}]
    write_journal(path, EVENTS)
    assert "which has; leave it out" in refused("enqueue", path, "n=3", "--new")


def test_when_a_search_under_way_tries_the_point_is_said(run, tmp_path, printed):
    def begin():
        run([ev.TrialSuggested(time_s=3.0, trial=2, point={**TRIED, "n": 8})])
        for path in (tmp_path / "inbox").iterdir():
            path.unlink()

    run()
    with closing(RunLock(tmp_path, 0.0)):
        assert "it is tried after the suggestions that the search has made already" in printed(
            "enqueue", tmp_path, "n=7", "--wait", "0"
        )
        answer = threading.Timer(0.3, begin)
        answer.start()
        assert printed("enqueue", tmp_path, "n=8", "--wait", "60") == "Enqueued n=8: trial 2 tries it.\n"
        answer.join()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["m=1"], "`m`, which is not a parameter. Its parameters: lr, n, kind, depth."),
        (["knd=a"], "Did you mean `kind`?"),
        (["n=10"], "n=10; it must be in Integer(1, 9)."),
        (["depth=1", "kind=a"], "`depth` is in a point only if"),
        (["n"], "A point must be given as NAME=VALUE"),
        (["n=1", "n=2"], "each name once"),
        (["n=2"], "Received: n=2, which trial 0 has. Give other values, or more of them."),
        (["n=4", "lr=0.5", "kind=a"], "Received: lr=0.5 n=4 kind=a, which trial 1 has. Give other values."),
    ],
)
def test_a_point_that_no_trial_may_have_is_refused(run, words, sentence, refused):
    path = run()
    assert sentence in refused("enqueue", path, *words)
    assert not (path / "inbox").exists()


def test_a_training_and_a_search_that_is_complete_take_no_points(run, tmp_path, refused):
    (tmp_path / "other").mkdir()
    assert "a training of one point" in refused("enqueue", run(TRAINING), "n=1")
    path = write_journal(tmp_path / "other", [*EVENTS, OVER])
    assert "before its search is complete" in refused("enqueue", path, "n=1")
    assert "must hold a journal.jsonl" in refused("enqueue", tmp_path / "none", "n=1")


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["7"], "TRIAL must be a trial of a search that is under way. Received: 7, of 2 trials numbered from 0."),
        (["-1"], "Received: -1"),
        (["x"], "`TRIAL` must be a whole number. Received: x."),
        (["1"], "trial 1, which is failed."),
        (["0", "--finish"], "trial 0 with `--finish`"),
    ],
)
def test_a_trial_that_cannot_be_stopped_is_refused(run, tmp_path, words, sentence, refused):
    run()
    with closing(RunLock(tmp_path, 0.0)):
        assert sentence in refused("stop", tmp_path, *words)
    assert not (tmp_path / "inbox").exists()


def test_an_idle_run_cannot_be_stopped(run, refused):
    assert "on which no process works" in refused("stop", run())


def test_a_shared_run_is_stopped_by_whichever_job_coordinates_it(tmp_path, capsys):
    shared_run(tmp_path)
    assert tool.main(["stop", str(tmp_path), "--wait", "0"]) == EXIT_FAILURE
    assert "Job 2, which coordinates, has not answered in 0 s" in capsys.readouterr().out
    (path,) = (tmp_path / "inbox").iterdir()
    assert json.loads(path.read_text()) == {"request": "Stop", "owner": {"job": 4}, "trial": None, "finish": False}


def test_a_shared_run_whose_jobs_have_ended_cannot_be_stopped(tmp_path, refused):
    assert "on which no process works" in refused("stop", shared_run(tmp_path, ends=True))


def test_a_trial_of_a_training_cannot_be_stopped(run, tmp_path, refused):
    run(TRAINING)
    with closing(RunLock(tmp_path, 0.0)):
        assert "trial 0 of a training; leave it out" in refused("stop", tmp_path, "0")


def test_a_request_names_the_process_that_holds_the_run_and_one_without_an_answer_is_left(run, tmp_path, capsys):
    run()
    with closing(RunLock(tmp_path, 0.0)):
        assert tool.main(["stop", str(tmp_path), "0", "--wait", "0"]) == EXIT_FAILURE
    assert "Requested the end of trial 0" in capsys.readouterr().out
    (path,) = (tmp_path / "inbox").iterdir()
    assert json.loads(path.read_text()) == {"request": "Stop", "owner": this_process(), "trial": 0, "finish": False}
