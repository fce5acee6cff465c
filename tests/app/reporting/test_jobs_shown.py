"""What people see of the jobs that share a run: who leads, who is here, who has left, and why."""

import csv
import io
import json

import pytest
from rich.console import Console

from nnlo_opt.app.analysis.frames import assignments_frame, trials_frame
from nnlo_opt.app.reporting.follow import JournalFollower
from nnlo_opt.app.reporting.jobs import jobs_of
from nnlo_opt.app.reporting.lines import ProgressLines
from nnlo_opt.app.reporting.page_data import page_data
from nnlo_opt.app.reporting.results import block_utilization, read_ledger, summarise, write_results
from nnlo_opt.app.reporting.status import status_of
from nnlo_opt.app.reporting.status_lines import status_lines
from nnlo_opt.app.reporting.watch import Page
from nnlo_opt.core.coordinator.instructions import SearchPlan
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.journal import load_events
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.sharing import may_be_shared_now
from tests.helpers.shared_run import SharedRun, shared_run
from tests.helpers.stories import SEARCH, UNDER_WAY, begun


@pytest.fixture(scope="module")
def under_way(tmp_path_factory):
    return shared_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def over(tmp_path_factory):
    return shared_run(tmp_path_factory.mktemp("run"), ends=True)


def joined(job, time_s, host="node", n_blocks=1):
    numbers = {"n_ranks": 3, "n_teams": n_blocks, "n_blocks": n_blocks}
    return ev.JobJoined(time_s=time_s, job=job, host=host, **numbers)


def told(*events):
    term = ev.TermBegan(time_s=0.0, term=1, job=1)
    return Ledger([SEARCH, term, *events])


def status(ledger, at_s=20.0, *, at_work=True):
    return status_of(ledger, "run", ledger.first_start_unix_s + at_s, at_work=at_work)


def test_the_status_has_a_line_for_each_job(under_way):
    ledger = read_ledger(under_way)
    lines = [line for line in status_lines(status(ledger)) if line.startswith("Job ")]
    assert lines == [
        "Job 2 on node-2 leads: 2 ranks, block 2, trial 2, for 0:00:18.",
        "Job 4 on node-4: 2 ranks, block 4, trial 5, for 0:00:03.",
        "Job 1 on node-1 left 0:00:05 ago, after 0:00:15.",
        "Job 3 on node-3 was expelled 0:00:08 ago, after 0:00:10: it was silent for too long.",
    ]
    assert "2 of 2 blocks busy" in status_lines(status(ledger))[1]


def test_a_run_that_is_over_counts_its_jobs(over):
    lines = status_lines(status(read_ledger(over), at_work=False))
    assert "Shared by 4 jobs (1 left, 1 expelled)." in lines
    assert not [line for line in lines if line.startswith("Job ")]


def test_a_run_without_any_job_says_how_to_join_and_expects_no_end(tmp_path, printed):
    """The coordinator was the only job, and has expelled itself because its block was stuck."""
    run = tmp_path / "R"
    shared = SharedRun(run)
    shared.join()
    shared.turns(14)
    shared.jobs[1].lead.expel(1, "block 1 is stuck", counts=False)
    head, done, *_ = status_lines(status(read_ledger(run), 40.0))
    how = "no job is there; start one by the same command with `--join`."
    assert head.endswith(f": running for 0:00:40, but {how}")
    assert done == "Done: 2/6 trials (4 pending, 2 complete)."
    assert "running, no job" in printed("list", run)
    console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    console.print(Page(status(read_ledger(run), 40.0)))
    assert how.rstrip(".") in console.file.getvalue()
    assert "busy" not in console.file.getvalue()
    shared.turns(2)  # the job knows that it has to go
    assert not may_be_shared_now(run), "it has not said goodbye"
    head, done, *_ = printed("status", run).splitlines()
    assert head.endswith(f": interrupted after 0:00:13: {how}")
    assert done == "Done: 2/6 trials (4 pending, 2 complete; blocks were busy 100% of their time)."


@pytest.mark.parametrize("n_jobs", [0, 2])
def test_a_run_whose_jobs_were_killed_has_none(n_jobs):
    jobs = [joined(number, 1.0) for number in range(1, 1 + n_jobs)]
    head, done, *_ = status_lines(status(told(*jobs), at_work=False))
    assert ("no job is there; start one" in head) == bool(n_jobs)
    assert "busy" not in done


def test_many_jobs_take_few_lines():
    gone = [ev.JobLeft(time_s=9.0 + n, job=n) for n in range(10, 20)]
    ledger = told(*(joined(n, 1.0 + n / 10, host=f"n{n}\nx") for n in range(1, 30)), *gone)
    lines = [line for line in status_lines(status(ledger, 40.0)) if "ob" in line]
    assert [line.split(":")[0] for line in lines if ":" in line][:3] == [
        "Job 1 on n1 x leads", "Job 2 on n2 x", "Job 3 on n3 x",
    ]  # fmt: skip
    assert "… and 14 jobs more." in lines
    assert "… and 7 earlier jobs." in lines


@pytest.mark.parametrize("height", [24, 100])
def test_the_page_in_a_terminal_has_room_for_many_jobs(height):
    ledger = told(*(joined(n, 1.0, host=f"n{n}") for n in range(1, 60)), *begun(0), ev.JobLeft(time_s=9.0, job=3))
    console = Console(file=io.StringIO(), width=60, height=height, force_terminal=True, color_system=None)
    console.print(Page(status(ledger, 40.0)), height=height)
    lines = console.file.getvalue().splitlines()
    assert len(lines) <= height
    heads = ["job", "ranks", "blocks", "trial", "time", "host"]
    (head,) = (place for place, line in enumerate(lines) if line.split() == heads)
    assert lines[head + 1].split() == ["1", "3", "1", "0", "0:00:39", "n1", "leads"]
    assert any(line.endswith("more") for line in lines)


def test_only_a_shared_run_has_jobs_in_its_status_and_results(under_way, tmp_path):
    shared, plain = status(read_ledger(under_way)).to_json(), status(Ledger(UNDER_WAY)).to_json()
    assert shared.keys() - plain.keys() == {"jobs"}
    assert [(job["job"], job["state"], job["running"]) for job in shared["jobs"]] == [
        (2, "leads", [{"trial": 2, "fold": 0}]),
        (4, "follows", [{"trial": 5, "fold": 0}]),
        (1, "left", []),
        (3, "expelled", []),
    ]
    assert json.loads(json.dumps(shared))["jobs"][0]["host"] == "node-2"
    assert summarise(read_ledger(under_way))["jobs"] == {"here": 2, "left": 1, "expelled": 1}
    assert "jobs" not in summarise(Ledger(UNDER_WAY))
    write_results(tmp_path, Ledger(UNDER_WAY))
    assert "job" not in (tmp_path / "results.csv").read_text().splitlines()[0].split(",")


def test_results_name_the_job_of_the_last_attempt(over, tmp_path):
    ledger = read_ledger(over)
    write_results(tmp_path, ledger)
    rows = [*csv.DictReader((tmp_path / "results.csv").read_text().splitlines())]
    assert [row["job"] for row in rows] == ["1", "2", "2", "1", "2", "4"]
    assert trials_frame(ledger)["job"].dtype == "Int64"
    assert assignments_frame(ledger)["job"].tolist() == [1, 2, 3, 1, 2, 1, 2, 4]


def test_attempts_before_the_run_was_shared_belong_to_no_job():
    ledger = Ledger([*UNDER_WAY, SEARCH.replaced(time_s=30.0, unix_s=130.0)])
    for event in (ev.TermBegan(time_s=31.0, term=1, job=1), joined(1, 32.0)):
        ledger.apply(event)
    assert assignments_frame(ledger)["job"].isna().all()
    assert jobs_of(ledger, 40.0)[0]["running"] == []


def test_blocks_count_as_available_while_their_jobs_are_here():
    # Block 1 is busy from 10 to 20 s; the two blocks of job 2 are here and idle from 12 to 15 s.
    ledger = told(joined(1, 1.0), *begun(0, 10.0), joined(2, 12.0, n_blocks=2), ev.JobLeft(time_s=15.0, job=2))
    ledger.apply(ev.AssignmentStopped(time_s=20.0, assignment=0))
    assert block_utilization(ledger) == pytest.approx(10 / (10 + 2 * 3))


def test_the_page_has_the_jobs_of_a_shared_run_only(over, tmp_path):
    assert [job["job"] for job in page_data(read_ledger(over), over)["jobs"]] == [2, 4, 1, 3]
    assert "jobs" not in page_data(Ledger(UNDER_WAY), tmp_path)


def test_a_pipe_gets_a_line_for_each_job_that_comes_or_goes(over):
    said, ledger = [], Ledger()
    for event in load_events(over / "journal.jsonl"):
        ledger.apply(event)
        if isinstance(event, ev.RunStarted):
            lines = ProgressLines(lambda text, style="": said.append(text), SearchPlan(num_iterations=6), ledger)
        lines.observe(event, ledger)
    assert [text.partition("] ")[2] for text in said if "] job" in text] == [
        "job 1 coordinates: term 1",
        "job 1 on node-1 joins: 2 ranks, block 1",
        "job 2 on node-2 joins: 2 ranks, block 2",
        "job 3 on node-3 joins: 2 ranks, block 3",
        "job 3 on node-3 is expelled: it was silent for too long",
        "job 2 coordinates: term 2",
        "job 1 on node-1 leaves",
        "job 4 on node-4 joins: 2 ranks, block 4",
    ]


def test_who_follows_the_journal_hears_of_each_event_once_whoever_leads(tmp_path):
    heard, shared = [], SharedRun(tmp_path)
    follower = JournalFollower(tmp_path / "journal.jsonl", lambda event, ledger: heard.append(event))
    for _ in range(2):
        shared.join()
        shared.turns(3)
        follower.read()
    shared.jobs[1].leave()
    for _ in range(60):
        shared.turns(1)
        follower.read()
    assert follower.ledger.term == 2
    assert follower.ledger.complete
    assert heard == load_events(tmp_path / "journal.jsonl")


def test_a_listing_counts_the_jobs_of_a_run_under_way(under_way, over, printed):
    assert "running, 2 jobs" in printed("list", under_way)
    assert "job" not in printed("list", over)
