import io
import os
import time
from contextlib import closing, redirect_stdout
from pathlib import Path

import pytest
from rich.console import Console

from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.app.reporting.status import status_of
from nnlo_opt.app.reporting.status_lines import bottom_line, status_lines
from nnlo_opt.app.reporting.watch import BEGIN_S, GRACE_S, MOST_FAILED, Page, RunWatch, _Changes
from nnlo_opt.core.base.errors import JournalError
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.journal import Journal
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_lock import RunLock
from nnlo_opt.core.trials.run_state import RunState
from tests.helpers.manual_clock import ManualClock
from tests.helpers.pages import REPOSITORY, Kind, blocks_of
from tests.helpers.printed import check
from tests.helpers.shared_run import shared_run
from tests.helpers.stories import SEARCH, TRAINING, UNDER_WAY, begun, failed, lines_of, reported, trial, write_journal

GUIDE = REPOSITORY / "docs/guide/watching.md"
DONE = ev.RunCompleted(time_s=30.0, reason="all trials are done")


def status(*events, at_s=20.0):
    return status_of(Ledger(events), Path("run"), 100.0 + at_s, at_work=True)


def page_of(seen, width=80, height=24):
    """The lines of the page on a terminal."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(Page(seen), height=height)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_the_page_of_a_search():
    seen = status(*UNDER_WAY, *failed(2), *trial(3, 0.25)[:1], at_s=61.0)
    assert page_of(seen) == [
        "run  random search of net",
        "running for 0:01:01",
        "━━━━━━━━━━━━━━━━━━━━──────────────────── 2/4 trials, about 0:00:00 left",
        "1 pending, 1 running, 1 complete, 1 failed; 1 of 2 blocks busy, 53% of the time",
        "best 0.5 (trial 0), at x=0",
        "",
        "trial  block  epoch  figure     time",
        "    1      2    2/5    0.75  0:00:51  ━━━━━━━━────────────",
        "",
        "trial  figure      ago  state",
        "    2       -  0:00:41  failed: no memory",
        "    0     0.5  0:01:00  complete",
        "",
        "trial 2: no memory",
    ]


@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 24), (40, 12), (200, 100), (20, 5)])
def test_the_page_fits_the_terminal(width, height):
    running = [event for n in range(60) for event in begun(n, block=n, fold=n % 2)]
    ends = [event for n in range(60, 80) for event in failed(n, f"reason {n % 5} " * 20)]
    lines = page_of(status(SEARCH, *running, *ends), width, height)
    assert max(map(len, lines)) <= width
    assert height < 20 or len(lines) <= height
    assert any("more" in line for line in lines) == (height < 100)


def test_a_reason_that_is_wider_than_the_terminal_is_shown_to_its_end():
    reason = "`get_model` of net.py failed at {'n_units': 207}, line 9, ValueError: n_units is too large"
    lines = page_of(status(SEARCH, *failed(0, f"{reason}; traceback in `logs/rank-00003.log`")))
    assert lines[-2] == "trial 0: `get_model` of net.py failed at {'n_units': 207}, line 9, ValueError:"
    assert lines[-1] == "     n_units is too large; traceback in `logs/rank-00003.log`"
    assert page_of(status(SEARCH, *failed(0, "too large " * 30)))[-1].endswith("too …")


def test_the_guide_shows_what_is_drawn(tmp_path):
    page, jobs, line = (block.text for block in blocks_of(GUIDE) if block.kind is Kind.SHOWN)
    identity = SEARCH.identity | {"training": {"epochs": 3}}
    search = SEARCH.replaced(identity=identity, settings={"plan": {"num_iterations": 20}, "hyper_opt": "bayesian"})
    reason = "`get_model` of net.py failed at {'n_units': 207}, line 9, ValueError: n_units is too large"
    ended = [*trial(0, 0.1375), *failed(1, f"{reason}; traceback in `logs/rank-00004.log`", 0.5)]
    ended += [event for number, figure in {2: 0.06, 3: 0.2175, 4: 0.1175}.items() for event in trial(number, figure)]
    running = [*begun(5), reported(5, 3, 0.15, 12.0), *begun(6, block=2), reported(6, 2, 0.0925, 12.0)]
    point = {"n_units": 93, "train.learning_rate": 0.01156}
    events = [event.replaced(point=point) if "point" in event.__struct_fields__ else event for event in ended + running]
    ledger = Ledger([search, *events])
    seen = status_of(ledger, Path("checkpoints/B"), 112.0, at_work=True)
    check(page, "\n".join(page_of(seen, height=40)), "the page of a search")
    shared = shared_run(tmp_path)
    lines = status_lines(status_of(read_ledger(shared), shared, time.time(), at_work=True))
    check(jobs, "\n".join(text for text in lines if text.startswith("Job ")), "the jobs of a shared run")
    check(line.partition("\n")[2], bottom_line(ledger, 12.6, 80), "the line of a driver")


def test_the_page_of_a_run_without_a_start_and_of_a_training():
    assert page_of(status())[1:] == ["waiting for the first line of the journal"]
    lines = page_of(status(TRAINING, *begun(0), reported(0, 1, 0.5, 12.0), reported(0, 2, 0.25, 14.0)))
    assert lines[2].endswith("2/5 epochs, about 0:00:00 left")
    assert "0.5 █▁ 0.25" in lines


# ---------------------------------------------------------------- the run directory


@pytest.fixture
def run(tmp_path):
    """A run under way, held by this process."""
    with closing(RunLock(tmp_path, 0.0)):
        yield write_journal(tmp_path, UNDER_WAY)


def append(run, *events):
    with closing(Journal(run / "journal.jsonl")) as journal:
        journal.append(events)


def test_a_run_is_watched_until_it_is_finished(run):
    watched = RunWatch(run)
    assert watched.look().progress.n_done == 1
    with (run / "journal.jsonl").open("ab") as file:
        file.write(b'{"seq":')  # what another machine is writing
    assert watched.look().progress.n_done == 1
    append(run, *trial(2), DONE)
    assert watched.look().state is RunState.FINISHED
    assert watched.is_over


def test_a_run_that_is_replaced_is_read_again(run):
    watched = RunWatch(run)
    watched.look()
    for name in ("journal.synced", "journal.jsonl"):
        (run / name).unlink()
    assert watched.look().progress.n_done == 1  # the state before
    write_journal(run, [SEARCH])
    assert watched.look().progress.n_done == 0
    (run / "journal.jsonl").write_bytes(b"".join(lines_of([SEARCH, *trial(0), *trial(1), *trial(2)])))  # the same file
    watched.look()
    assert watched.look().progress.n_done == 3


def test_a_journal_that_stays_damaged_is_refused(run):
    watched = RunWatch(run)
    watched.look()
    with (run / "journal.jsonl").open("ab") as file:
        file.write(b"damaged\n")
    for _ in range(MOST_FAILED - 1):
        watched.look()
    with pytest.raises(JournalError, match="damaged in line"):
        watched.look()


@pytest.mark.parametrize(("events", "waits"), [([], True), (UNDER_WAY, False)], ids=["no start", "dead"])
def test_a_run_without_a_process_is_over_at_once_or_if_it_has_begun_nothing_after_a_while(tmp_path, events, waits):
    if events:
        write_journal(tmp_path, events)
    clock = ManualClock()
    watched = RunWatch(tmp_path, clock=clock)
    watched.look()
    assert watched.is_over is not waits
    clock.advance(BEGIN_S + 1)
    watched.look()
    assert watched.is_over


def test_a_run_that_dies_may_begin_again_for_a_while(tmp_path):
    write_journal(tmp_path, UNDER_WAY)
    clock = ManualClock()
    watched = RunWatch(tmp_path, clock=clock)
    with closing(RunLock(tmp_path, 0.0)):
        watched.look()
    clock.advance(GRACE_S)
    assert watched.look().state is RunState.DEAD
    assert not watched.is_over
    clock.advance(1)
    watched.look()
    assert watched.is_over


# ---------------------------------------------------------------- in a pipe


def test_a_pipe_gets_the_state_then_a_line_for_each_change_then_the_state(run, capsys):
    changes = _Changes(run, lambda _: append(run, *trial(2, 0.25), DONE))
    assert changes.print(1.0) is RunState.FINISHED
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"`{run}`, random search of net: running")
    assert lines[4:6] == [
        "[      3.0 s] trial 2 starts on block 1: x=2",
        "[      3.0 s] trial 2 complete: 0.25 | new best | 2/4 done | about 0:00:22 left",
    ]
    assert lines[6].startswith(f"`{run}`, random search of net: finished (all trials are done)")


def test_a_run_that_begins_after_its_watch_is_shown(tmp_path, capsys):
    def begin(_):
        (tmp_path / "later").mkdir()
        write_journal(tmp_path / "later", [*UNDER_WAY, DONE])

    assert _Changes(tmp_path / "later", begin).print(1.0) is RunState.FINISHED
    first, *others = capsys.readouterr().out.splitlines()
    assert "waiting for the first line of the journal" in first
    assert "finished (all trials are done)" in " ".join(others)


def test_a_closed_pipe_ends_the_lines(run):
    reader, writer = os.pipe()

    def leave(_):
        os.close(reader)  # which cannot be done twice
        append(run, *trial(2))

    with open(writer, "w") as pipe, redirect_stdout(pipe):
        with pytest.raises(BrokenPipeError):
            _Changes(run, leave).print(1.0)
        os.dup2(os.open(os.devnull, os.O_WRONLY), writer)  # closing the pipe flushes it


def test_a_pipe_gets_a_training_and_its_next_start(tmp_path, capsys):
    write_journal(tmp_path, [TRAINING])
    with closing(RunLock(tmp_path, 0.0)):
        again = TRAINING.replaced(time_s=9.0, unix_s=109.0)
        changes = _Changes(tmp_path, lambda _: append(tmp_path, again, *begun(0), reported(0, 1, 0.5, 12.0), DONE))
        changes.print(1.0)
    lines = capsys.readouterr().out.splitlines()
    assert "Start 2: 3 ranks." in lines
    assert "epoch 1/5: , 0:00:08 left" in lines
