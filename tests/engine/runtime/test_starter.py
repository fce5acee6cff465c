"""Who has started a rank, among processes that stand for mpirun, wrappers and ranks."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress

import psutil
import pytest

from nnlo_opt.engine.runtime.starter import starter_of
from tests.helpers.launcher import seen_within

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs Linux")

#: a rank, which says for each line whether what has started it has ended
RANK = """
import os, sys
from nnlo_opt.engine.runtime.peers import has_ended
from nnlo_opt.engine.runtime.starter import starter_of
starter = starter_of()
print(os.getpid(), flush=True)
for line in sys.stdin:
    print(None if starter is None else has_ended(starter), flush=True)
"""
#: a rank that computes in a search of its script for so many seconds
SEARCHING = """
import sys, time
from nnlo_opt.engine.runtime.starter import ending_with_starter
for seconds in (0.0, float(sys.argv[1])):
    with ending_with_starter():
        print("searches", flush=True)
        time.sleep(seconds)
print("has searched", flush=True)
"""
#: mpirun, which starts the words of its command with the variables of a rank
MPIRUN = """
import os, signal, subprocess, sys
own = {"PMIX_NAMESPACE": "prterun-here-%d@1" % os.getpid(), "PMIX_RANK": "0"}
subprocess.run(sys.argv[1:], env={**os.environ, **own})
"""


class Rank:
    """A rank that mpirun has started by the words of `wrapper`, in which `mpirun` itself has `environ`."""

    def __init__(self, wrapper, **environ):
        # It stays when the wrapper has ended, so that a test can tell the one from the other.
        words = [sys.executable, "-c", f"{MPIRUN}signal.pause()", *wrapper, sys.executable, "-c", RANK]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.mpirun = subprocess.Popen(words, **pipes, text=True, env={**os.environ, **environ})
        self.process = psutil.Process(int(self.mpirun.stdout.readline()))

    def has_lost_mpirun(self):
        self.mpirun.stdin.write("\n")
        self.mpirun.stdin.flush()
        return self.mpirun.stdout.readline() == "True\n"


@contextmanager
def started(wrapper=(), **environ):
    rank = Rank(wrapper, **environ)
    family = [*psutil.Process(rank.mpirun.pid).children(recursive=True)]
    try:
        yield rank
    finally:
        for process in (*family, rank.mpirun):
            with suppress(psutil.NoSuchProcess):
                process.kill()
        rank.mpirun.communicate(timeout=10)


#: runs its words as a child
SHELL = ("bash", "-c", '"$0" "$@"; true')


@pytest.mark.parametrize("wrapper", [(), SHELL, (*SHELL, "env", "A=b", *SHELL)])
def test_a_rank_sees_the_death_of_mpirun_behind_any_wrapper(wrapper):
    with started(wrapper) as rank:
        assert not rank.has_lost_mpirun()
        rank.mpirun.kill()
        assert seen_within(20, rank.has_lost_mpirun)


def test_an_mpirun_within_a_rank_of_another_one_is_what_has_started_its_ranks():
    with started(SHELL, PMIX_NAMESPACE="prterun-here-1@1", PMIX_RANK="0") as rank:
        assert not rank.has_lost_mpirun()
        rank.mpirun.kill()
        assert seen_within(20, rank.has_lost_mpirun)


def test_the_death_of_a_wrapper_is_left_to_mpirun():
    with started(SHELL) as rank:
        shell = rank.process.parent()
        assert shell.ppid() == rank.mpirun.pid
        shell.send_signal(signal.SIGKILL)
        shell.wait(20)
        assert rank.process.ppid() != shell.pid
        assert not rank.has_lost_mpirun()


def test_a_process_that_no_launcher_has_started_has_no_starter():
    assert starter_of({}) is None
    assert starter_of({"SLURM_PROCID": "3"}) is None


def searching(seconds):
    words = [sys.executable, "-c", MPIRUN, sys.executable, "-c", SEARCHING, str(seconds)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_search_in_a_script_ends_with_its_mpirun_and_leaves_no_thread_without_it():
    with searching(0.0) as mpirun:
        assert mpirun.communicate(timeout=60)[0].split("\n")[-2] == "has searched"
    with searching(600.0) as mpirun:
        said = [mpirun.stdout.readline() for _ in range(2)]
        rank = psutil.Process(mpirun.pid).children()[0]
        mpirun.kill()
        assert seen_within(20, lambda: not rank.is_running() or rank.status() == psutil.STATUS_ZOMBIE)
        assert "this rank ends, too" in mpirun.communicate(timeout=20)[1]
    assert said == ["searches\n"] * 2
