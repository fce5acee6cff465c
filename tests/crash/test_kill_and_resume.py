"""SIGKILL the whole job at random moments and run the same command again: nothing finished is lost or done twice."""

import collections
import itertools
import json
import random
from pathlib import Path

import pytest

from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.engine.search.registry import search_names
from tests.helpers import launcher, objectives
from tests.helpers.networks import Network
from tests.helpers.objective_runs import begin, search

pytestmark = pytest.mark.mpi


def kill_and_resume(folder: Path, command: list[str], pauses_s: list[float], event: bytes = b"\n") -> list[dict]:
    """Kill a job of 5 ranks after each pause, then let it end; the events of the journal.

    A pause begins when the journal has grown by such an event: it is spent in the run, whatever the machine's speed.
    """
    run = folder / "checkpoints/K"
    journal = run / "journal.jsonl"
    seen: list[bytes] = []
    for pause_s in pauses_s:
        job = launcher.start(5, command, folder)
        n_before = seen[-1].count(event) if seen else 0

        def has_ended(job: launcher.Job = job) -> bool:
            return job.process.poll() is not None

        def has_grown(n_before: int = n_before) -> bool:
            return journal.exists() and journal.read_bytes().count(event) > n_before

        launcher.seen_within(90, lambda: has_ended() or has_grown())
        launcher.seen_within(pause_s, has_ended)
        job.kill()
        if journal.exists():
            seen.append(journal.read_bytes())
    launcher.run(5, command, folder, 240)
    final = journal.read_bytes()
    for data in seen:
        assert final.startswith(data[: data.rfind(b"\n") + 1]), "what was in the journal has changed"
    return launcher.events_of(run)


@pytest.mark.parametrize(
    ("seed", "n_kills"),
    [(1, 2), pytest.param(1, 5, marks=pytest.mark.proof), pytest.param(2, 5, marks=pytest.mark.proof)],
)
def test_a_search_killed_several_times_ends_as_if_it_had_not_been(tmp_path, seed, n_kills):
    (tmp_path / "objective.py").write_text(objectives.SLOW)
    command = ["OptimizationDriver", "--model", "objective.py", "--num-iterations", "40", "--checkpoint", "K"]
    rng = random.Random(seed)
    pauses_s = [rng.uniform(0.0, 0.8) for _ in range(n_kills)]
    events = kill_and_resume(tmp_path, [*command, "--opt-restore"], pauses_s)
    launcher.check_search(tmp_path / "checkpoints/K", 40)
    assert sum(event["event"] == "RunStarted" for event in events) >= n_kills - 1


def slow_search(folder: Path, digits: Path, network: Network) -> list[str]:
    """The command of a search `K` that trains."""
    (folder / "net.py").write_text(network.slow)
    return ["OptimizationDriver", "--model", "net.py", "--checkpoint", "K", *launcher.data_of(digits)]


@pytest.mark.proof
def test_trainings_continue_from_their_last_checkpointed_epoch(tmp_path, digits, network):
    command = [*slow_search(tmp_path, digits, network), "--epochs", "4", "--num-iterations", "4", "--opt-restore"]
    events = kill_and_resume(tmp_path, command, [0.2, 0.1, 0.5], event=b'"EpochEnded"')
    launcher.check_search(tmp_path / "checkpoints/K", 4)
    assert any(event["event"] == "FoldBegan" and event["epoch"] > 0 for event in events)
    assigned = {event["assignment"]: event for event in events if event["event"] == "FoldAssigned"}
    #: trial -> epochs whose checkpoint the journal knows of; epochs trained in the attempt under way
    written: dict[int, int] = {}
    reached: dict[int, int] = {}
    for event in events:
        if event["event"] == "FoldBegan":
            trial = assigned[event["assignment"]]["trial"]
            # A checkpoint may be newer than its line: the job may die between the two.
            assert event["epoch"] >= written.get(trial, 0)
            reached[trial] = event["epoch"]
        if event["event"] == "EpochEnded":
            trial = assigned[event["assignment"]]["trial"]
            assert event["epoch"] == reached[trial] + 1
            reached[trial] = event["epoch"]
            if event["checkpointed"]:
                written[trial] = event["epoch"]
    for number in range(4):
        history = json.loads((tmp_path / f"checkpoints/K/trials/{number:04d}/fold0/history.json").read_text())
        assert len(history["epochs"]) == 4


@pytest.mark.proof
def test_paused_trials_stay_paused_and_continue_from_their_epoch(tmp_path, digits, network):
    """Real trainings with rungs at 1 and 2 of 4 epochs, killed at any moment; a checkpoint only where one must be."""
    command = [*slow_search(tmp_path, digits, network), "--epochs", "4", "--num-iterations", "12", "--opt-restore"]
    command += ["--pruner", "asha", "--pruner-eta", "2", "--checkpoint-interval", "4", "--hyper-opt", "random"]
    # The better ones come first, and are paused first: those that come later, and are worse, have them promoted.
    command += [word for n_units in range(64, 4, -5) for word in ("--start-point", f"n_units={n_units}")]
    events = kill_and_resume(tmp_path, command, [1.0, 2.0], event=b'"EpochEnded"')
    ledger = read_ledger(tmp_path / "checkpoints/K")
    assert ledger.complete
    assert all(trial.state in ("complete", "pruned") for trial in ledger.trials)
    ends = collections.Counter(e["trial"] for e in events if e["event"] in ("TrialCompleted", "TrialPruned"))
    assert ends == collections.Counter(range(12)), "a trial was lost or ended twice"
    assert ledger.n_by_state()["complete"] >= 1
    n_gone_on = 0
    for trial in ledger.trials:
        for before, after in itertools.pairwise(trial.assignments):
            if before.end == "paused" and after.started_at_s is not None:
                n_gone_on += 1
                began = next(e for e in events if e["event"] == "FoldBegan" and e["assignment"] == after.number)
                assert began["epoch"] == before.epoch in (1, 2)
                assert after.attempt == before.attempt
        if trial.state == "complete":
            assert list(trial.reports[0]) == [1, 2, 3, 4]
            assert trial.folds[0].n_epochs == 4
            history = json.loads((tmp_path / f"checkpoints/K/trials/{trial.number:04d}/fold0/history.json").read_text())
            assert len(history["epochs"]) == 4
    assert n_gone_on, "no trial was promoted after a pause"
    assert not list((tmp_path / "checkpoints/K").glob("trials/*/fold0/checkpoint-*"))


def kill_when_complete(folder: Path, n_trials: int, n_ranks: int, *options: str) -> None:
    """Start a search, and kill it when so many of its trials are complete."""
    job = begin(folder, objectives.SLOW, n_ranks, *options)
    job.wait_for(folder / "checkpoints/S", "TrialCompleted", n_trials)
    job.kill()


#: algorithm -> packages of extras that it needs
NEEDED = {"tpe": ("optuna",), "gp": ("optuna", "torch"), "cmaes": ("cmaes",)}
ALGORITHMS = [pytest.param(name, marks=pytest.mark.needs(*NEEDED.get(name, ()))) for name in search_names()]


@pytest.mark.proof
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_killed_search_continues(tmp_path, algorithm):
    options = ["--num-iterations", "24", "--hyper-opt", algorithm, "--block-size", "1"]
    options += ["--grid-points", "24"] * (algorithm == "grid")
    options += ["--pruner-max-epochs", "3"] * (algorithm == "freeze-thaw")
    kill_when_complete(tmp_path, 11, 3, *options)  # most have begun to learn: they start with 10 trials
    search(tmp_path, objectives.SLOW, 3, *options, "--opt-restore")
    launcher.check_search(tmp_path / "checkpoints/S", 24)


@pytest.mark.proof
def test_a_resume_may_have_another_number_of_ranks(tmp_path):
    kill_when_complete(tmp_path, 3, 5, "--num-iterations", "20")
    search(tmp_path, objectives.SLOW, 4, "--num-iterations", "20", "--opt-restore", "--block-size", "1")
    launcher.check_search(tmp_path / "checkpoints/S", 20)
