"""A search over two hosts: one of them dies, the cable is cut, the one with the coordinator dies."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import launcher, objectives, two_hosts

pytestmark = pytest.mark.mpi

DRIVER = ["OptimizationDriver", "--model", "objective.py", "--hyper-opt", "random", "--checkpoint", "H"]
DRIVER += ["--num-iterations", "24", "--opt-restore"]
RUN = "checkpoints/H"
#: long enough for a machine that others work on as well; what hangs is found by it
END_S = 300.0
#: a script for Horovod, without a framework
SCRIPT = """
import socket
import numpy as np
import nnlo_opt.allreduce as hvd

hvd.init()
mean = hvd.allreduce(np.full(333_333, hvd.rank(), np.float32))
print(f"{hvd.local_rank()} of {hvd.local_size()} on {socket.gethostname()}: {mean[-1]} {mean.size}", flush=True)
"""


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[two_hosts.Hosts]:
    if why := two_hosts.missing():
        pytest.skip(f"two hosts: {why}")
    (tmp_path / "objective.py").write_text(objectives.SLOW)
    with two_hosts.two_hosts(tmp_path) as both:
        yield both


def check_end(folder: Path, job: launcher.Job, before: bytes) -> None:
    """Every trial once, and what was in the journal is still there."""
    job.wait(END_S)
    assert (folder / RUN / "journal.jsonl").read_bytes().startswith(before[: before.rfind(b"\n") + 1])
    assert launcher.events_of(folder / RUN)[-1]["event"] == "RunCompleted"
    launcher.check_search(folder / RUN, 24)


@pytest.mark.proof
def test_a_host_that_dies_with_its_ranks_costs_no_trial(hosts, tmp_path):
    job = hosts.launch(1, (3, 2), DRIVER, tmp_path)
    job.wait_for(tmp_path / RUN, "TrialCompleted", 3)
    before = (tmp_path / RUN / "journal.jsonl").read_bytes()
    assert hosts.kill(2) >= 3, "a daemon and two ranks are there"
    check_end(tmp_path, job, before)


@pytest.mark.slow
def test_a_cable_that_is_cut_costs_no_trial(hosts, tmp_path):
    job = hosts.launch(1, (3, 2), DRIVER, tmp_path)
    job.wait_for(tmp_path / RUN, "TrialCompleted", 3)
    hosts.cut()
    before = (tmp_path / RUN / "journal.jsonl").read_bytes()
    # mpirun gives the other host up, and ends the ranks on its own.
    ranks = hosts.pids(1)
    assert launcher.seen_within(END_S, lambda: len(set(ranks) & set(hosts.pids(1))) <= 2)
    hosts.join()
    check_end(tmp_path, job, before)


@pytest.mark.proof
def test_a_run_continues_on_the_other_host_when_the_coordinators_host_dies(hosts, tmp_path):
    job = hosts.launch(1, (3, 2), DRIVER, tmp_path)
    job.wait_for(tmp_path / RUN, "TrialCompleted", 3)
    assert hosts.kill(1) >= 5, "the launcher, mpirun and three ranks are there"
    job.wait(END_S, code=None)
    before = (tmp_path / RUN / "journal.jsonl").read_bytes()
    assert len(launcher.events_of(tmp_path / RUN, "TrialCompleted")) < 24
    job = hosts.launch(2, (3, 2), DRIVER, tmp_path)
    check_end(tmp_path, job, before)
    assert len(launcher.events_of(tmp_path / RUN, "RunStarted")) == 2


@pytest.mark.proof
def test_horovodrun_starts_a_script_on_both_hosts(hosts, tmp_path):
    (tmp_path / "program.py").write_text(SCRIPT)
    outcome = hosts.horovodrun((2, 1), [sys.executable, "program.py"], tmp_path).wait(END_S)
    places = ["0 of 2 on nnlo-host-1", "1 of 2 on nnlo-host-1", "0 of 1 on nnlo-host-2"]
    assert sorted(outcome.out.splitlines()) == sorted(f"{place}: 1.0 333333" for place in places)
    assert hosts.ports == {"port 2222"}


@pytest.mark.proof
def test_the_doctor_tries_messages_between_hosts_and_notices_the_wrong_network(hosts, tmp_path):
    said = hosts.doctor("eth0", 60, tmp_path).wait(END_S, code=None).out
    assert "ranks: 3 ranks have started: 2 on nnlo-host-1, 1 on nnlo-host-2." in said
    assert "ranks: Messages nnlo-host-1 to nnlo-host-2: " in said
    said = hosts.doctor("lo", 10, tmp_path).wait(END_S, code=1).out
    assert "broken: ranks: No message has come back." in said
