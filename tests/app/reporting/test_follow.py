import json
import os
import signal
import subprocess
import sys
import zlib

import pytest

from nnlo_opt.app.reporting.follow import JournalFollower, Reporter
from nnlo_opt.core.base.errors import JournalError
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.journal import Journal, encode_line
from tests.helpers.stories import trial as events_of_trial
from tests.helpers.stories import write_journal

STARTED = ev.RunStarted(time_s=0.0, unix_s=0.0, n_ranks=1, n_blocks=1, identity={})


def suggested(trial):
    return ev.TrialSuggested(time_s=1.0, trial=trial, point={"n": trial})


def test_a_follower_takes_in_whole_lines_only_however_they_come(tmp_path):
    path = tmp_path / "journal.jsonl"
    data = b"".join(encode_line(seq, event) for seq, event in enumerate([STARTED, *map(suggested, range(4))]))
    for n_bytes in (1, 7, 100, len(data)):
        path.write_bytes(b"")
        follower = JournalFollower(path)
        assert not follower.read()
        with path.open("ab", buffering=0) as file:
            for start in range(0, len(data), n_bytes):
                file.write(data[start : start + n_bytes])
                n_whole = data[: start + n_bytes].count(b"\n")
                assert follower.read() == (n_whole > data[:start].count(b"\n"))
                assert follower.n_events == n_whole
        assert len(follower.ledger.trials) == 4
        assert not follower.read()


def test_a_follower_stops_at_a_line_that_is_damaged(tmp_path):
    path = tmp_path / "journal.jsonl"
    path.write_bytes(encode_line(0, STARTED) + encode_line(2, suggested(0)))
    with pytest.raises(ValueError, match="sequence number 1"):
        JournalFollower(path).read()


def reports_of(path):
    rows = (path / "results.csv").read_text().splitlines()[1:]
    return len(rows), json.loads((path / "summary.json").read_text())["n_trials"]["pending"]


def test_the_reporter_writes_all_there_is_when_it_is_told_to_finish(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl")
    journal.append([STARTED])
    reporter = Reporter(tmp_path)
    for trial in range(3):
        journal.append([suggested(trial)], durable=False)
    assert reporter.finish()
    assert reports_of(tmp_path) == (3, 3)


def test_the_reporter_writes_the_page_at_the_end(tmp_path):
    write_journal(tmp_path, [STARTED, suggested(0)])
    reporter = Reporter(tmp_path)
    assert reporter.finish()
    assert reporter.has_page
    assert "plotly.js v" in (tmp_path / "report.html").read_text(encoding="utf-8")


def test_a_page_that_cannot_be_written_leaves_the_tables_as_they_should_be(tmp_path, capfd):
    write_journal(tmp_path, [STARTED, suggested(0)])
    (tmp_path / "report.html").mkdir()
    reporter = Reporter(tmp_path)
    assert reporter.finish()
    assert not reporter.has_page
    assert reports_of(tmp_path) == (1, 1)
    assert capfd.readouterr().err == ""


#: a reporter that waits for a file system while it reads how stale the updates of a fold were
SLOW = """
import sys, time
from pathlib import Path
from nnlo_opt.app.reporting import follow, page_data
follow.PAGE_S = 0.2
page_data.parse_object = lambda text: time.sleep(50)
follow.follow(Path(sys.argv[1]), int(sys.argv[2]))
"""


def test_a_page_that_takes_too_long_is_given_up_and_the_tables_are_there(tmp_path, monkeypatch, capfd):
    (tmp_path / "slow.py").write_text(SLOW)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(Reporter, "module", "slow")
    run = tmp_path / "run"
    (run / "trials/0000/fold0").mkdir(parents=True)
    (run / "trials/0000/fold0/history.json").touch()
    write_journal(run, [STARTED, *events_of_trial(0)])
    reporter = Reporter(run)
    assert reporter.finish()
    assert not reporter.has_page
    assert reports_of(run) == (1, 0)
    assert capfd.readouterr().err == ""


def test_the_reporter_writes_all_there_is_when_the_coordinator_died(tmp_path):
    coordinator = """
import os, sys
from pathlib import Path
from nnlo_opt.app.reporting.follow import Reporter
reporter = Reporter(Path(sys.argv[1]))
print(reporter._process.pid, flush=True)
os.kill(os.getpid(), 9)
"""
    write_journal(tmp_path, [STARTED, suggested(0)])
    # Reading its output to the end waits for the reporter too, which has inherited it.
    subprocess.run([sys.executable, "-c", coordinator, str(tmp_path)], stdout=subprocess.PIPE, check=False)
    assert reports_of(tmp_path) == (1, 1)
    assert not (tmp_path / "report.html").exists()


#: leaves a child that holds all that it had open, but its output; then finishes, or dies
LEAVES_A_CHILD = """
import os, sys, time
from pathlib import Path
from nnlo_opt.app.reporting.follow import Reporter
reporter = Reporter(Path(sys.argv[1]))
child = os.fork()
if not child:
    os.closerange(0, 3)
    time.sleep(100)
    os._exit(0)
print(child, flush=True)
if sys.argv[2] == "dies":
    os.kill(os.getpid(), 9)
print(reporter.finish(20.0))
"""


@pytest.mark.parametrize("how", ["finishes", "dies"])
def test_the_reporter_ends_though_a_child_of_the_coordinator_holds_its_input_open(tmp_path, how):
    write_journal(tmp_path, [STARTED, suggested(0)])
    words = [sys.executable, "-c", LEAVES_A_CHILD, str(tmp_path), how]
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    child, *finished = done.stdout.split()
    os.kill(int(child), signal.SIGKILL)
    assert finished == ([] if how == "dies" else ["True"])
    assert reports_of(tmp_path) == (1, 1)


@pytest.mark.parametrize("content", [None, b"damaged\n"])
def test_a_reporter_of_a_run_that_is_gone_or_damaged_fails_without_a_traceback(tmp_path, content, capfd):
    if content is not None:
        (tmp_path / "journal.jsonl").write_bytes(content)
    assert not Reporter(tmp_path).finish()
    assert not (tmp_path / "results.csv").exists()
    assert capfd.readouterr().err == ""


def test_the_reporter_removes_the_weights_that_are_not_kept(tmp_path):
    files = [tmp_path / f"trials/{number:04d}/fold0/weights.npz" for number in range(3)]
    for file in files:
        file.parent.mkdir(parents=True)
        file.touch()
    started = STARTED.replaced(settings={"keep_weights": 1})
    trials = [event for n, figure in enumerate((0.2, 0.1, 0.3)) for event in events_of_trial(n, figure)]
    write_journal(tmp_path, [started, *trials, ev.RunCompleted(time_s=9.0, reason="done")])
    assert Reporter(tmp_path).finish()
    assert [file.exists() for file in files] == [False, True, False]


def test_an_event_that_cannot_be_read_is_told_with_its_line_and_a_remedy(tmp_path):
    path = tmp_path / "journal.jsonl"
    body = b'{"event":"TrialFailed","time_s":1e11,"trial":0,"reason":"r"}'
    line = b'{"seq":1,"crc":"%08x",' % zlib.crc32(body, zlib.crc32(b"", 1)) + body[1:] + b"\n"
    path.write_bytes(encode_line(0, STARTED) + line)
    with pytest.raises(JournalError, match=r"damaged in line 2 .*nnlo-opt repair"):
        JournalFollower(path).read()
