"""`nnlo-opt launch` and SIGUSR1 with real ranks."""

import signal

import psutil
import pytest

from nnlo_opt.app.reporting.results import read_ledger
from tests.helpers import launcher, networks, objectives
from tests.helpers.launcher import events_of
from tests.helpers.objective_runs import DRIVER, launch

pytestmark = pytest.mark.mpi

#: trials of a minute
LONG = objectives.SLOW.replace("(1, 2, 3)", "range(1, 1200)")
RUN = "checkpoints/L"


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=10)
    return not [p for p in alive if p.status() != psutil.STATUS_ZOMBIE]


def test_a_run_whose_rank_is_killed_is_started_again_and_does_nothing_twice(tmp_path):
    # On a busy machine, trials of 0.15 s would all end before the rank is found.
    model = objectives.SLOW.replace("0.05", "0.25")
    job = launch(tmp_path, *DRIVER, "--num-iterations", "10", options=("--no-ulfm",), model=model, n_ranks=3)
    job.wait_for(tmp_path / RUN, "TrialCompleted", 3)
    family = job.family()
    job.rank(2).kill()
    outcome = job.wait(120)
    assert "nnlo-opt launch: rank 2 on " in outcome.err
    assert "(SIGKILL, by hand or for lack of memory) before the run was complete: starting again" in outcome.err
    assert "restart 1 of at most 10" in outcome.err
    assert len(events_of(tmp_path / RUN, "RunStarted")) == 2
    launcher.check_search(tmp_path / RUN, 10)
    assert gone(family)


@pytest.mark.proof
def test_a_terminated_launcher_leaves_75_and_no_process_and_the_next_continues(tmp_path):
    driver = [*DRIVER, "--num-iterations", "2"]
    job = launch(tmp_path, *driver, options=("--grace", "6"), model=LONG)
    job.wait_for(tmp_path / RUN, "FoldBegan", 2)
    driver.append("--opt-restore")
    refused = launch(tmp_path, *driver, model=LONG).wait(30, code=2)
    assert "A run has one launcher at a time" in refused.err
    family = job.family()
    job.process.terminate()
    job.wait_for_words("SIGTERM: the ranks have 6 s")
    job.process.terminate()
    outcome = job.wait(40, code=75)
    said = outcome.err.splitlines()
    assert said[0] == "nnlo-opt launch: SIGTERM: the ranks have 6 s to checkpoint and exit."
    assert said[-2] == "Interrupted: 0 of 2 trials done, 2 in progress. Resume with:"
    assert said[-1].split() == ["nnlo-opt", "launch", "-n", "5", "--grace", "6", "--", *driver]
    assert "prterun" not in outcome.err
    assert gone(family)
    ledger = read_ledger(tmp_path / RUN)
    assert ledger.preempted_because == "asked to end by nnlo-opt launch"
    assert ledger.n_by_state()["preempted"] == 2
    job = launch(tmp_path, *driver, options=("--grace", "2"), model=LONG)
    job.wait_for(tmp_path / RUN, "FoldBegan", 4)
    job.process.send_signal(signal.SIGUSR1)
    job.wait(40, code=75)
    assert [trial.n_attempts(0) for trial in read_ledger(tmp_path / RUN).trials] == [2, 2]


def test_the_sentence_of_a_refusal_is_all_that_a_launcher_shows(tmp_path):
    outcome = launch(tmp_path, *DRIVER, "--warm-start", "nowhere", n_ranks=2).wait(60, code=2)
    assert len(outcome.err.splitlines()) == 1
    assert outcome.err.startswith("`--warm-start` must name a run directory")
    assert not (tmp_path / RUN).exists()


@pytest.mark.proof
def test_one_rank_that_hears_the_signal_tells_all(tmp_path):
    (tmp_path / "objective.py").write_text(objectives.SLOW)
    job = launcher.start(5, [*DRIVER, "--num-iterations", "500", "--grace", "10"], tmp_path)
    job.wait_for(tmp_path / RUN, "TrialCompleted", 2)
    job.rank(4).send_signal(signal.SIGUSR1)
    job.wait(40, code=75)
    # Trials of a sixth of a second come to their end meanwhile, and none is left half done.
    ledger = read_ledger(tmp_path / RUN)
    assert {a.end for a in ledger.assignments} == {"finished"}


@pytest.mark.proof
def test_an_objective_that_hears_nothing_is_not_waited_for(tmp_path):
    (tmp_path / "objective.py").write_text(objectives.SLOW.replace("time.sleep(0.05)", "time.sleep(100)"))
    job = launcher.start(5, [*DRIVER, "--num-iterations", "500", "--grace", "2"], tmp_path)
    job.wait_for(tmp_path / RUN, "FoldBegan", 2)
    job.process.send_signal(signal.SIGUSR1)
    job.wait(40, code=75)  # less than it sleeps
    assert read_ledger(tmp_path / RUN).n_by_state()["preempted"] == 2


@pytest.mark.proof
def test_a_rank_that_does_not_leave_is_waited_for_no_longer_than_the_grace(tmp_path):
    (tmp_path / "objective.py").write_text(objectives.SLOW)
    program = (
        "import sys, time; from nnlo_opt.cli import main; from nnlo_opt.engine.comm.mpi import world\n"
        "world.finalize = lambda: time.sleep(100)\n"
        f"sys.argv = {[*DRIVER, '--num-iterations', '500', '--grace', '3']}\n"
        "main.optimization_driver()"
    )
    job = launcher.start(1, ["python", "-c", program], tmp_path)
    job.wait_for(tmp_path / RUN, "TrialCompleted", 2)
    job.process.send_signal(signal.SIGUSR1)
    job.wait(40, code=75)
    assert read_ledger(tmp_path / RUN).preempted_because == "preempted by SIGUSR1"


@pytest.mark.proof
def test_a_launcher_gives_up_on_a_run_that_does_not_grow(tmp_path):
    deadly = "import os\nos.kill(os.getpid(), 9)\n" + objectives.SLOW
    outcome = launch(tmp_path, *DRIVER, "--num-iterations", "4", model=deadly).wait(120, code=1)
    assert "2 starts in a row have added nothing to the journal: giving up" in outcome.err
    assert events_of(tmp_path / RUN) == []


@pytest.mark.proof
def test_a_trial_that_kills_its_rank_each_time_fails_and_the_search_continues(tmp_path):
    deadly = objectives.FINITE.replace("    return", "    if parameters['n'] == 3:\n        os.abort()\n    return")
    launch(tmp_path, *DRIVER, "--num-iterations", "5", model=deadly).wait(120)
    ledger = read_ledger(tmp_path / RUN)
    states = {trial.point["n"]: trial.state for trial in ledger.trials}
    assert states == {1: "complete", 2: "complete", 3: "failed", 4: "complete", 5: "complete"}
    failed = next(trial for trial in ledger.trials if trial.state == "failed")
    assert failed.reason.startswith("ranks that trained it were lost 3 times in a row (`--max-attempts`)")
    assert failed.n_attempts(0) == 3
    # A rank that crashes says where, and no handler of MPI's keeps it from dying.
    logs = "".join(path.read_text() for path in (tmp_path / RUN / "logs").iterdir())
    assert "Fatal Python error: Aborted" in logs
    assert "objective.py" in logs
    assert "Process received signal" not in logs
    # The first block that dies is outlived (ULFM); with the second none is left, and the third try needs another start.
    assert len(events_of(tmp_path / RUN, "RunStarted")) == 2


@pytest.mark.proof
def test_a_preempted_training_has_a_checkpoint_and_continues_by_restore(tmp_path, digits):
    (tmp_path / "model.py").write_text(networks.NETWORKS["dense"].slow)
    command = ["TrainingDriver", "--model", "model.py", "--epochs", "12", "--trial-name", "L"]
    command += ["--checkpoint-interval", "12", *launcher.data_of(digits)]
    job = launcher.start(1, ["nnlo-opt", "launch", "-n", "3", "--", *command], tmp_path)
    job.wait_for(tmp_path / RUN, "EpochEnded", 1)
    job.process.terminate()
    outcome = job.wait(60, code=75)
    assert "of 12 epochs done. Resume with:\n    nnlo-opt launch -n 3 -- TrainingDriver" in outcome.err
    assert "of 12 epochs. Add `--restore` to resume." in outcome.out, outcome.out + outcome.err
    assert [e["reason"] for e in events_of(tmp_path / RUN, "RunPreempted")] == ["asked to end by nnlo-opt launch"]
    epochs = events_of(tmp_path / RUN, "EpochEnded")
    # `--checkpoint-interval` has written none: there is one of the moment, which an epoch may just have ended at.
    (place,) = (tmp_path / RUN / "trials/0000/fold0").glob("checkpoint-*")
    between = place.name == f"checkpoint-{len(epochs)}"
    assert between or place.name.startswith(f"checkpoint-{len(epochs)}-")
    assert [e["checkpointed"] for e in epochs] == [False] * (len(epochs) - 1) + [between]
    outcome = launcher.start(1, ["nnlo-opt", "launch", "-n", "3", "--", *command, "--restore"], tmp_path).wait(120)
    assert [e["epoch"] for e in events_of(tmp_path / RUN, "FoldBegan")] == [0, len(epochs)]
    assert "Trained 12 epochs" in outcome.out
