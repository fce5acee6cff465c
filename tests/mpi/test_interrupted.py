"""Ctrl-C and SIGTERM: the last lines say how far the run has come, and what resumes it."""

import os
import pty
import shlex
import signal
import time

import pytest

from nnlo_opt.app.reporting.results import read_ledger
from nnlo_opt.engine.runtime.environment import SESSION_FOLDER
from nnlo_opt.testing.mpirun import find_mpirun
from tests.helpers import launcher, objectives

pytestmark = pytest.mark.mpi

DRIVER = ["OptimizationDriver", "--model", "objective.py", "--hyper-opt", "random", "--checkpoint", "I"]
RUN = "checkpoints/I"


def test_ctrl_c_on_one_rank_leaves_130_and_the_command_that_resumes(tmp_path):
    (tmp_path / "objective.py").write_text(objectives.SLOW)
    job = launcher.start(1, [*DRIVER, "--num-iterations", "20", "--overwrite"], tmp_path)
    job.wait_for(tmp_path / RUN, "TrialCompleted", 1)
    job.process.send_signal(signal.SIGINT)
    line, command = job.wait(20, code=130).err.splitlines()
    n_done = read_ledger(tmp_path / RUN).n_ended
    assert line.startswith(f"Interrupted: {n_done} of 20 trials done")
    assert shlex.split(command) == [*DRIVER, "--num-iterations", "20", "--opt-restore"]
    launcher.run(1, shlex.split(command), tmp_path)
    launcher.check_search(tmp_path / RUN, 20)


@pytest.mark.proof
def test_rank_0_alone_speaks_if_all_ranks_are_interrupted(tmp_path):
    """MPICH's mpirun hands Ctrl-C on to its ranks."""
    (tmp_path / "objective.py").write_text(objectives.SLOW)
    job = launcher.start(3, [*DRIVER, "--block-size", "1", "--num-iterations", "500"], tmp_path)
    job.wait_for(tmp_path / RUN, "TrialCompleted", 1)
    for number in (2, 1, 0):
        job.rank(number).send_signal(signal.SIGINT)
    words = job.wait(20, code=130).err
    assert words.count("Interrupted: ") == words.count(" of 500 trials done") == 1


@pytest.mark.proof
def test_rank_0_says_under_mpirun_what_resumes_the_run(tmp_path):
    """Open MPI's mpirun reads no more once it was told to end: the line goes to the terminal itself."""
    (tmp_path / "objective.py").write_text(objectives.SLOW)
    words = ["mpirun", "-np", "3", *DRIVER, "--num-iterations", "500"]
    pid, terminal = pty.fork()
    if not pid:
        os.chdir(tmp_path)
        os.environ.update({**launcher.environment(), SESSION_FOLDER: str(tmp_path / ".mpi")})
        os.execv(str(find_mpirun()), [words[0], *words[1:3], str(launcher.BIN / words[3]), *words[4:]])
    shown, asked_at_s = "", None
    try:
        while time.monotonic() < (asked_at_s or time.monotonic()) + 20:
            shown += os.read(terminal, 1 << 16).decode(errors="replace")
            if asked_at_s is None and " complete: " in shown:
                asked_at_s = time.monotonic()
                os.write(terminal, b"\x03")
    except OSError:  # the terminal of a process that has ended
        pass
    os.waitpid(pid, 0)
    assert " of 500 trials done" in shown
    assert shown.split("Resume with:")[1].split()[:13] == [*words, "--opt-restore"]
