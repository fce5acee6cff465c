"""Jobs that share a search (`--join`), with real ranks: one hands over, and what is refused leaves no trace."""

import signal

import pytest

from tests.helpers import launcher, objectives

pytestmark = pytest.mark.mpi

OBJECTIVE = objectives.module("""
    for epoch in (1, 2, 3):
        time.sleep(0.2)
        report(epoch, parameters["x"] / epoch)
    return parameters["x"]
""")
DRIVER = ["OptimizationDriver", "--model", "objective.py", "--hyper-opt", "random", "--seed", "3", "--checkpoint", "R"]
#: nobody is silent for so long, however busy the machine
JOIN = ["--join", "10m"]
RUN = "checkpoints/R"


def more(n):
    return [*DRIVER, *JOIN, "--num-iterations", str(n)]


def content(run):
    """Return what is in the files of all jobs."""
    return {path: path.read_bytes() for path in (run / "jobs").rglob("*") if path.is_file()}


def test_a_job_alone_completes_and_a_later_one_ends_or_continues(tmp_path, preloaded):
    (tmp_path / "objective.py").write_text(OBJECTIVE)
    run = tmp_path / RUN
    preloaded.run(more(2), tmp_path)
    launcher.check_search(run, 2)
    before = content(run)
    refused = preloaded.run([*more(2), "--seed", "4"], tmp_path, code=2)
    assert "--seed" in refused.err
    assert content(run) == before, "a job that asks for another search is not noticed"
    assert "is complete" in preloaded.run(more(2), tmp_path).out
    launcher.check_search(run, 2)
    preloaded.run(more(3), tmp_path)
    launcher.check_search(run, 3)
    assert [event["job"] for event in launcher.events_of(run, "TermBegan")] == [1, 3]


@pytest.mark.proof
def test_another_job_takes_the_place_of_a_coordinator_that_is_told_to_end(tmp_path):
    (tmp_path / "objective.py").write_text(OBJECTIVE)
    run = tmp_path / RUN
    first = launcher.start(3, [*more(40), "--block-size", "1"], tmp_path)
    first.wait_for(run, "JobJoined", 1)
    second = launcher.start(2, more(40), tmp_path)
    first.wait_for(run, "JobJoined", 2)
    first.process.send_signal(signal.SIGUSR1)
    assert "Job 1 has left" in first.wait(60, code=75).out
    second.wait(120, code=0)
    launcher.check_search(run, 40)
    assert [event["job"] for event in launcher.events_of(run, "TermBegan")] == [1, 2]
    assert [event["expelled"] for event in launcher.events_of(run, "JobLeft")] == [False]
    assert not any(event["counts"] for event in launcher.events_of(run, "AssignmentLost"))


def test_a_job_of_one_rank_hears_what_was_decided_although_its_objective_waits_for_that(tmp_path, preloaded):
    """The coordinator is in another thread, and may be in another job."""
    (tmp_path / "objective.py").write_text(OBJECTIVE)
    preloaded.run([*more(6), "--pruner", "asha"], tmp_path)
    assert launcher.events_of(tmp_path / RUN, "RunCompleted")
    assert len(launcher.events_of(tmp_path / RUN, "EpochEnded")) > 6


@pytest.mark.proof
def test_each_job_has_a_launcher_that_starts_it_again(tmp_path):
    (tmp_path / "objective.py").write_text(OBJECTIVE)
    run, launch = tmp_path / RUN, ["nnlo-opt", "launch", "-n", "2", "--no-ulfm", "--"]
    jobs = [launcher.start(1, [*launch, *DRIVER, "--join", "20", "--num-iterations", "40"], tmp_path) for _ in range(2)]
    jobs[0].wait_for(run, "JobJoined", 2)
    jobs[0].rank(1).kill()
    assert "starting again from the journal, restart 1 of at most 10" in jobs[0].wait(120).err
    jobs[1].wait(60)
    launcher.check_search(run, 40)
    assert len(launcher.events_of(run, "JobJoined")) == 3
    assert not list(run.glob("launch*"))


@pytest.mark.proof
def test_a_job_of_one_rank_says_goodbye_although_its_objective_does_not_return(tmp_path):
    (tmp_path / "objective.py").write_text(objectives.module("    time.sleep(600)"))
    run = tmp_path / RUN
    job = launcher.start(1, [*more(2), "--grace", "6"], tmp_path)
    job.wait_for(run, "FoldAssigned", 1)
    job.process.send_signal(signal.SIGUSR1)
    job.wait(30, code=75)
    assert b'"Left"' in (run / "jobs" / "job-1.log").read_bytes()


@pytest.mark.proof
def test_a_job_whose_files_are_gone_says_so(tmp_path):
    (tmp_path / "objective.py").write_text(OBJECTIVE)
    job = launcher.start(1, more(100), tmp_path)
    job.wait_for(tmp_path / RUN, "TrialCompleted", 1)
    (tmp_path / RUN / "jobs").rename(tmp_path / "elsewhere")
    said = job.wait(30, code=1).err
    assert "must remain readable and writable. Received: [Errno 2]" in said
    assert "Traceback" not in said


@pytest.mark.proof
def test_a_job_of_one_rank_ends_although_its_objective_never_returns(tmp_path):
    (tmp_path / "objective.py").write_text(objectives.module("    time.sleep(600)"))
    said = launcher.run(1, [*more(2), "--trial-timeout", "2"], tmp_path, code=1).err
    assert "Job 1 ends in the middle of a trial: Block 1 is stuck in the model's code" in said
    assert launcher.events_of(tmp_path / RUN, "JobLeft")[0]["expelled"]
