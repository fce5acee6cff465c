"""Jobs that share a search (`--join`), with real ranks: one hands over, and what is refused leaves no trace."""

import signal

import psutil
import pytest

from nnlo_opt.core.comm.run_messages import Shutdown
from nnlo_opt.core.jobs.lines import Ordered, encoded
from nnlo_opt.core.trials import unrecorded
from nnlo_opt.core.trials.deaths import Death, leave_note, read_notes
from nnlo_opt.core.trials.trial import FoldResult, UnrecordedFold
from tests.helpers import launcher, objectives
from tests.helpers.effort import some_of
from tests.helpers.shared_run import SharedRun
from tests.helpers.steps import fold_finished

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


@pytest.mark.parametrize("has_ended", some_of([False, True]))
def test_a_run_that_jobs_share_from_now_on_knows_how_its_last_start_ended(tmp_path, has_ended):
    (tmp_path / "objective.py").write_text(OBJECTIVE)
    run = tmp_path / RUN
    alone = launcher.start(1, [*DRIVER, "--num-iterations", "2"], tmp_path)
    alone.wait_for(run, "FoldAssigned", 1)
    alone.kill()
    order = launcher.events_of(run, "FoldAssigned")[0]
    leave_note(run, Death(world_rank=1, team=order["team"], host="node", how="its process died"))
    if has_ended:
        about = {name: order[name] for name in ("assignment", "trial", "fold", "attempt")}
        point = launcher.events_of(run, "TrialSuggested")[0]["point"]
        unrecorded.keep(run, UnrecordedFold(**about, point=point, result=FoldResult.of(fold_finished(0))))
    launcher.run(1, more(2), tmp_path)
    assert (launcher.events_of(run, "AssignmentFinished")[0]["assignment"] == 0) == has_ended
    losses = [(event["reason"], event["counts"]) for event in launcher.events_of(run, "AssignmentLost")]
    assert losses == ([] if has_ended else [("rank 1 on node: its process died", True)])
    assert not (run / "deaths").exists(), "it would count against trials of job 1, whose teams have the same numbers"
    assert not (run / "unrecorded").exists()


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
def test_a_rank_that_dies_after_its_job_has_joined_anew_counts_against_its_own_trial(tmp_path):
    (tmp_path / "objective.py").write_text(OBJECTIVE.replace("0.2", "2.0"))
    run, join = tmp_path / RUN, [*DRIVER, "--join", "6", "--num-iterations", "100", "--block-size", "1"]
    first = launcher.start(2, join, tmp_path)
    first.wait_for(run, "FoldAssigned", 1)
    second = launcher.start(3, join, tmp_path)
    first.wait_for(run, "FoldAssigned", 3)
    asleep = [psutil.Process(second.process.pid), *second.family()]
    for process in asleep:
        process.suspend()
    first.wait_for(run, "JobLeft", 1)
    for process in asleep:
        process.resume()
    first.wait_for(run, "JobJoined", 3)

    def team_of(event):
        return next(e["team"] for e in assigned if e["assignment"] == event["assignment"])

    # Teams 0 and 1, 2 have been those of jobs 1 and 2; job 3 is job 2, and has 3 and 4.
    def both_have_begun():
        assigned[:] = launcher.events_of(run, "FoldAssigned")
        return {3, 4} <= {*map(team_of, launcher.events_of(run, "FoldBegan"))}

    assigned = []
    assert launcher.seen_within(30, both_have_begun)
    second.rank(2).kill()
    second.wait(30, code=None)
    died = read_notes(run)[0]
    assert (died.world_rank, died.team) == (2 + 3 + 2, 4)
    first.wait_for(run, "JobLeft", 2)
    both_have_begun()
    causes = {team_of(event): event["reason"] for event in launcher.events_of(run, "AssignmentLost")}
    assert "its process died" in causes[4]
    assert causes[3] == "a rank of another block of its job has died"
    first.kill()


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


def test_a_job_that_may_not_obey_an_order_ends_with_a_sentence_and_another_one_goes_on(tmp_path):
    (tmp_path / "objective.py").write_text(OBJECTIVE)
    run, name = tmp_path / RUN, "orders-1-1.log"
    (run / "jobs").mkdir(parents=True)
    (run / "jobs" / name).write_bytes(encoded(name, 0, Ordered(rank=1, message=Shutdown(exit_code=0).to_json())))
    said = launcher.run(1, more(2), tmp_path, code=1).err
    assert said.startswith("A job obeys only orders about folds of its own search")
    assert "Received in `checkpoints/R/jobs`: Shutdown is not an order." in " ".join(said.split())
    assert "Traceback" not in said
    launcher.run(1, more(2), tmp_path)
    launcher.check_search(run, 2)


def test_a_job_that_finds_out_late_that_the_search_is_another_one_is_refused_like_any(tmp_path):
    """Jobs that start at the same time see no journal before they have joined."""
    (tmp_path / "objective.py").write_text(OBJECTIVE)
    shared = SharedRun(tmp_path / RUN)
    shared.join()
    leader = shared.jobs[1]
    leader.step()  # it has the first term, which has not begun
    log = shared.run / "jobs" / "job-2.log"
    late = launcher.start(1, more(2), tmp_path)
    assert launcher.seen_within(60, lambda: log.exists() and b"Follows" in log.read_bytes())

    def has_ended():
        leader.step()
        shared.clock.advance(0.1)
        return late.process.poll() is not None

    launcher.seen_within(60, has_ended, every_s=0.1)
    assert late.wait(1, code=2).err.startswith("`--join` resumes the same run only. In `checkpoints/R`")


@pytest.mark.proof
def test_a_job_of_one_rank_ends_although_its_objective_never_returns(tmp_path):
    (tmp_path / "objective.py").write_text(objectives.module("    time.sleep(600)"))
    said = launcher.run(1, [*more(2), "--trial-timeout", "2"], tmp_path, code=1).err
    assert "Job 1 ends in the middle of a trial: Block 1 is stuck in the model's code" in said
    assert launcher.events_of(tmp_path / RUN, "JobLeft")[0]["expelled"]
