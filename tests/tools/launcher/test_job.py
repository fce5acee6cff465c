"""A job that is asked to end, in a shell that stands for mpirun."""

import os
import signal
import sys
import time
from contextlib import suppress

import psutil
import pytest

from nnlo_opt.tools.launcher import job as module
from nnlo_opt.tools.launcher.job import Job

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="environments of processes are read in /proc")

#: a starter that ends and leaves a rank behind in a session of its own, as MPICH's do
LEAVES_ONE = """
import subprocess, sys
rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
print(rank.pid, file=open(sys.argv[1], "w"))
sys.exit(3)
"""


def shell(script: str) -> Job:
    return Job(["sh", "-c", script])


def test_a_job_that_ends_when_it_is_asked_to_is_not_late():
    job = Job(
        [sys.executable, "-c", "import signal; signal.signal(signal.SIGUSR1, lambda *_: exit(75)); signal.pause()"]
    )
    assert job.wait(lambda: True, 60.0) in (75, -signal.SIGUSR1)  # the latter before it was handled
    assert not job.was_late


#: stands for hydra: it hears the signal, and says so by its code
HEARS = """
import pathlib, signal, subprocess, sys
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
rank = subprocess.Popen(["sleep", "600"])
pathlib.Path(sys.argv[1]).touch()
rank.wait()
"""


@pytest.mark.parametrize("script", ['"$@"; exit $?', 'bash -c \'"$@"; exit $?\' x "$@"; exit $?', '"$@" & wait $!'])
def test_the_first_process_that_is_no_shell_is_asked_and_the_shells_before_it_live_on(tmp_path, script):
    ready = tmp_path / "ready"
    job = Job(["sh", "-c", script, "mpirun", sys.executable, "-c", HEARS, str(ready)])
    assert job.wait(ready.exists, 60.0) == 75
    assert not job.was_late


def test_a_shell_that_has_started_nothing_is_asked_itself():
    job = shell("while :; do :; done")
    assert job.wait(lambda: True, 60.0) == -signal.SIGUSR1


def test_a_job_that_ends_by_itself_is_not_late():
    job = shell("exit 3")
    assert job.wait(lambda: False, 0.0) == 3
    assert not job.was_late


def test_a_job_that_does_not_end_in_time_is_ended_with_all_that_it_has_started(tmp_path):
    ready = tmp_path / "ready"
    job = shell(f"trap '' USR1; sleep 1000 & : > {ready}; wait; wait; wait")
    assert job.wait(ready.exists, 1.0) != 0
    assert job.was_late
    assert not [pid for pid in psutil.pids() if is_of(job.pid, pid) and alive(pid)]


def test_a_job_has_begun_when_a_rank_was_seen_or_there_must_be_one_elsewhere(monkeypatch):
    job = shell("exit 1")
    job.wait(lambda: False, 0.0)
    assert not job.has_begun
    for begin_s, script in (1000.0, "sleep 1000 & wait"), (0.2, "exec sleep 1000"):
        monkeypatch.setattr(module, "BEGIN_S", begin_s)
        job = shell(script)
        job.wait(lambda job=job: job.has_begun, 0.0)
        assert job.has_begun


def test_a_starter_that_outlives_its_ranks_is_ended(impatient, until_seen):
    job = shell(f"{until_seen} & wait; exec sleep 1000")
    assert job.wait(lambda: False, 0.0) == -signal.SIGTERM
    assert not job.was_late


def test_a_starter_whose_ranks_are_elsewhere_is_waited_for(impatient):
    assert shell("exec sleep 1").wait(lambda: False, 0.0) == 0


TWO_RANKS = "export OMPI_COMM_WORLD_LOCAL_SIZE=2;"


@pytest.fixture
def impatient(monkeypatch):
    for name, seconds in {"COUNT_S": 0.05, "ALONE_S": 0.3, "GATHER_S": 0.05, "GIVE_UP_S": 0.5}.items():
        monkeypatch.setattr(module, name, seconds)


@pytest.fixture
def until_seen(monkeypatch, tmp_path):
    """A command that lasts until the job has seen it, however busy the machine."""
    seen, has_ranks = tmp_path / "seen", Job._has_ranks

    def note(job):
        found = has_ranks(job)
        if found:
            seen.touch()
        return found

    monkeypatch.setattr(Job, "_has_ranks", note)
    return f"until [ -e {seen} ]; do sleep 0.05; done"


@pytest.mark.parametrize("first_s", [0, 0.5])
def test_ranks_that_wait_for_one_that_died_before_mpi_began_are_ended(impatient, tmp_path, first_s):
    job = Job(["sh", "-c", f"{TWO_RANKS} sleep {first_s} & sleep 1000 & wait"], sign=tmp_path / "begins")
    assert job.wait(lambda: False, 0.0) == -signal.SIGTERM
    assert not module._processes(job._number, job.pid)


def test_ranks_that_live_after_mpi_has_begun_are_left_alone(impatient, tmp_path):
    sign = tmp_path / "begins"
    job = Job(["sh", "-c", f"{TWO_RANKS} rm ${module.SIGN}; sleep 0.5 & sleep 2 & wait"], sign=sign)
    assert job.wait(lambda: False, 0.0) == 0
    assert not sign.exists()


def test_a_job_whose_ranks_leave_before_mpi_has_begun_says_so_itself(impatient, tmp_path):
    job = Job(["sh", "-c", f"{TWO_RANKS} sleep 0.2 & sleep 0.4 & wait; exit 2"], sign=tmp_path / "begins")
    assert job.wait(lambda: False, 0.0) == 2


def test_a_job_is_started_where_its_sign_cannot_be_written(tmp_path):
    assert Job(["true"], sign=tmp_path / "gone" / "begins").wait(lambda: False, 0.0) == 0


@pytest.mark.parametrize("begins", [True, False])
def test_a_job_that_still_begins_when_its_launcher_is_dead_is_ended_by_the_next(tmp_path, begins):
    sign = tmp_path / "begins"
    forgotten = Job(["sleep", "1000"], sign=sign)
    if not begins:
        sign.unlink()
    assert Job(["true"], sign=sign).wait(lambda: False, 0.0) == 0
    assert (forgotten._process.poll() is None) == (not begins)
    forgotten.end()


def is_of(session, pid):
    with suppress(OSError):
        return os.getsid(pid) == session


def alive(pid):
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_job_that_has_ended_leaves_no_process_behind_whatever_its_session(tmp_path):
    job = Job([sys.executable, "-c", LEAVES_ONE, str(tmp_path / "pid")])
    assert job.wait(lambda: False, 1.0) == 3
    pid = int((tmp_path / "pid").read_text())
    assert not alive(pid)


def test_the_end_of_a_job_leaves_other_jobs_alone(tmp_path):
    first = Job([sys.executable, "-c", "import time; time.sleep(600)"])
    second = Job([sys.executable, "-c", LEAVES_ONE, str(tmp_path / "pid")])
    second.wait(lambda: False, 1.0)
    assert alive(first.pid)
    assert alive(os.getpid())
    began_s = time.monotonic()
    first.wait(lambda: time.monotonic() > began_s + 0.2, 0.1)
    assert not alive(first.pid)
