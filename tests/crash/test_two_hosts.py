"""A search over two hosts: one of them dies, the cable is cut, the one with the coordinator dies."""

import collections
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import launcher
import objectives
import pytest
import two_hosts

pytestmark = pytest.mark.mpi

DRIVER = ["OptimizationDriver", "--model", "objective.py", "--hyper-opt", "random", "--checkpoint", "H"]
DRIVER += ["--num-iterations", "24", "--opt-restore"]
#: long enough for a machine that others work on as well; what hangs is found by it
END_S = 300.0


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[two_hosts.Hosts]:
    if why := two_hosts.missing():
        pytest.skip(f"two hosts: {why}")
    (tmp_path / "objective.py").write_text(objectives.SLOW)
    with two_hosts.two_hosts(tmp_path) as both:
        yield both


def events_of(folder: Path) -> list[dict]:
    path = folder / "checkpoints/H/journal.jsonl"
    data = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


def n_complete(folder: Path) -> int:
    return sum(event["event"] == "TrialCompleted" for event in events_of(folder))


def wait_until(done: Callable[[], bool], job: launcher.Job) -> None:
    deadline_s = time.monotonic() + END_S
    while not done():
        assert time.monotonic() < deadline_s
        assert job.process.poll() is None, "it ended before"
        time.sleep(0.05)


def check_end(folder: Path, job: launcher.Job, before: bytes) -> None:
    """Every trial once, and what was in the journal is still there."""
    outcome = job.wait(END_S)
    assert outcome.code == 0, outcome.err
    assert (folder / "checkpoints/H/journal.jsonl").read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    events = events_of(folder)
    assert events[-1]["event"] == "RunCompleted"
    completed = collections.Counter(event["trial"] for event in events if event["event"] == "TrialCompleted")
    assert completed == collections.Counter(range(24))
    finished = [event["assignment"] for event in events if event["event"] == "AssignmentFinished"]
    assert len(finished) == len(set(finished)) == 24


def test_a_host_that_dies_with_its_ranks_costs_no_trial(hosts, tmp_path):
    job = hosts.launch(1, (3, 2), DRIVER, tmp_path)
    wait_until(lambda: n_complete(tmp_path) >= 3, job)
    before = (tmp_path / "checkpoints/H/journal.jsonl").read_bytes()
    assert hosts.kill(2) >= 3, "a daemon and two ranks are there"
    check_end(tmp_path, job, before)


@pytest.mark.slow
def test_a_cable_that_is_cut_costs_no_trial(hosts, tmp_path):
    job = hosts.launch(1, (3, 2), DRIVER, tmp_path)
    wait_until(lambda: n_complete(tmp_path) >= 3, job)
    hosts.cut()
    before = (tmp_path / "checkpoints/H/journal.jsonl").read_bytes()
    # mpirun gives the other host up, and ends the ranks on its own.
    ranks = hosts.pids(1)
    wait_until(lambda: len(set(ranks) & set(hosts.pids(1))) <= 2, job)
    hosts.join()
    check_end(tmp_path, job, before)


def test_a_run_goes_on_on_the_other_host_when_that_of_the_coordinator_has_died(hosts, tmp_path):
    job = hosts.launch(1, (3, 2), DRIVER, tmp_path)
    wait_until(lambda: n_complete(tmp_path) >= 3, job)
    assert hosts.kill(1) >= 5, "the launcher, mpirun and three ranks are there"
    job.wait(END_S)
    before = (tmp_path / "checkpoints/H/journal.jsonl").read_bytes()
    assert n_complete(tmp_path) < 24
    job = hosts.launch(2, (3, 2), DRIVER, tmp_path)
    check_end(tmp_path, job, before)
    assert sum(event["event"] == "RunStarted" for event in events_of(tmp_path)) == 2
