import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from nnlo_opt.app.reporting.follow import Reporter
from nnlo_opt.app.run.afterwards import last_steps
from nnlo_opt.core.base.errors import EXIT_FAILURE
from nnlo_opt.core.base.files import make_directory
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.attempts import attempt_directory
from nnlo_opt.core.trials.checkpoint import fold_directory
from tests.helpers.told_runs import Story


def test_checkpoints_of_folds_that_continue_are_kept(tmp_path):
    story = Story()
    trial = story.suggest(0.0, n=1)
    story.finish(1.0, story.assign(0.0, trial, fold=0), 0.5)
    story.assign(0.0, trial, fold=1)
    ledger = story.ledger
    for fold in (0, 1):
        make_directory(fold_directory(tmp_path, 0, fold) / "checkpoint-1")
    last_steps.remove_stale_checkpoints(tmp_path, ledger)
    assert list(tmp_path.rglob("checkpoint-1")) == [tmp_path / "trials/0000/fold1/checkpoint-1"]
    ledger.apply(ev.TrialFailed(time_s=2.0, trial=0, reason="no memory"))
    last_steps.remove_stale_checkpoints(tmp_path, ledger)
    assert not list(tmp_path.rglob("checkpoint-1"))


def test_what_attempts_have_left_that_do_not_count_is_removed(tmp_path):
    story = Story()
    trial = story.suggest(0.0, n=1)
    story.lose(1.0, story.assign(0.0, trial))
    story.apply(ev.TermBegan(time_s=1.0, term=1, job=1))
    story.lose(3.0, story.assign(2.0, trial))
    story.finish(5.0, story.assign(4.0, trial))
    folders = [attempt_directory(tmp_path, 0, 0, assignment.identity) for assignment in story.ledger.assignments]
    folders.append(attempt_directory(tmp_path, 0, 0, (1, 7)))  # an order of a coordinator that was overtaken
    for folder in folders:
        make_directory(folder / "checkpoint-1")
        (folder / "weights.npz").write_bytes(b"")
    last_steps.remove_stale_checkpoints(tmp_path, story.ledger)
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == [Path(str(folders[2] / "weights.npz"))]
    assert not list(tmp_path.rglob("checkpoint-1"))


class Timer:
    """Instead of `threading.Timer`: its time has come when the test says so."""

    def __init__(self, seconds, function):
        self.seconds, self.function = seconds, function

    def start(self):
        assert self.daemon


def test_blocks_that_are_stuck_are_waited_for_as_long_as_a_trial_may_take_and_no_longer(monkeypatch):
    codes, said, timers = [], [], []

    def timer(*given):
        timers.append(Timer(*given))
        return timers[-1]

    monkeypatch.setattr(last_steps.threading, "Timer", timer)
    monkeypatch.setattr(last_steps.os, "_exit", codes.append)
    last_steps.end_if_stuck(set(), 900.0, lambda text, stream: said.append(text))
    assert not timers
    last_steps.end_if_stuck({3, 1}, 900.0, lambda text, stream: said.append(text))
    last_steps.end_if_stuck({2}, 1.0, lambda text, stream: said.append(text))
    assert [made.seconds for made in timers] == [900.0, last_steps.LEAVE_S]
    assert not said
    timers[0].function()
    assert codes == [EXIT_FAILURE]
    assert said[0].startswith("Block 1 and 3 is stuck")


# ---------------------------------------------------------------- --on-end


def told_at_end(tmp_path, command, code=0, left_s=None, events=()):
    """What a person reads when `command` was run at the end of a run with one complete trial and `events`."""
    story, said = Story(), []
    story.trial(0.0, 1.0, 0.25)
    story.complete(1.0, 0, 0.25)
    story.ledger.replay(events)
    directory = SimpleNamespace(ledger=story.ledger, path=tmp_path)
    last_steps.run_at_end(command, directory, code, left_s, lambda text, stream: said.append(text))
    return said


@pytest.mark.parametrize(
    ("events", "code", "state"),
    [
        ([ev.RunCompleted(time_s=2.0, reason="done")], 0, "finished"),
        ([ev.RunPreempted(time_s=2.0, reason="done")], 75, "interrupted"),
        ([], 1, "dead"),
    ],
)
def test_a_command_at_the_end_finds_the_run_its_state_and_its_best_trial(tmp_path, events, code, state):
    names = "RUN STATE CODE TRIALS BEST_TRIAL BEST_FIGURE BEST_POINT"
    command = f'cd {tmp_path}; for n in {names}; do eval echo \\"\\$NNLO_OPT_$n\\"; done > facts'
    assert not told_at_end(tmp_path, command, code, events=events)
    facts = [str(tmp_path), state, str(code), "1", "0", "0.25", '{"n": 0}', ""]
    assert (tmp_path / "facts").read_text().split("\n") == facts


@pytest.mark.parametrize(
    ("command", "words"), [("exit 3", "has failed with code 3: `exit 3`"), ("sleep 100 & wait", "was killed")]
)
def test_a_command_at_the_end_that_fails_or_takes_too_long_is_a_line_and_no_more(tmp_path, command, words):
    (said,) = told_at_end(tmp_path, command, left_s=1.0)
    assert words in said


@pytest.mark.parametrize("python", [sys.executable, "/nowhere/python", ""])
def test_a_reporter_that_failed_leaves_the_tables_to_rank_0_and_the_page_to_the_user(tmp_path, monkeypatch, python):
    story, said = Story(), []
    story.trial(0.0, 5.0)
    monkeypatch.setattr(sys, "executable", python)
    reporter = Reporter(tmp_path)  # which fails in any case, as there is no journal
    directory = SimpleNamespace(path=tmp_path, shown="runs/a", ledger=story.ledger)
    written = last_steps.write_last_reports(reporter, directory, lambda text, file: said.append(text))
    assert {*written} == {path.name for path in tmp_path.iterdir()} == {"results.csv", "summary.json"}
    assert said == ["report.html is not written: `nnlo-opt report runs/a` writes it, or prints why."]


def test_reports_that_cannot_be_written_are_not_among_the_files_of_the_run(tmp_path):
    story, said = Story(), []
    story.trial(0.0, 5.0)
    (tmp_path / "report.html").write_text("of an earlier start")
    (tmp_path / "results.csv").mkdir()
    directory = SimpleNamespace(path=tmp_path, shown="runs/a", ledger=story.ledger)
    assert last_steps.write_last_reports(Reporter(tmp_path), directory, lambda text, file: said.append(text)) == ()
    assert "could not be written" in said[0]
