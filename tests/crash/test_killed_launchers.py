"""SIGKILL of mpirun, of the supervisor of a script, of a rank with it: nothing is left, and the run is resumed."""

import os
import sys

import psutil
import pytest

from nnlo_opt.app.reporting.results import read_ledger
from tests.helpers import launcher, objectives
from tests.helpers.effort import some_of
from tests.helpers.launcher import events_of, seen_within, use_ulfm
from tests.helpers.objective_runs import rows
from tests.helpers.processes import MARK, STUBBORN, marked

pytestmark = pytest.mark.mpi

#: computes for long, without a call of MPI, unless there is a file
COMPUTES = objectives.module("""
    from pathlib import Path
    if not Path("quick").exists():
        for _ in range(60_000):
            time.sleep(0.01)
    return parameters["x"]
""")
OPTIONS = ["--checkpoint", "S", "--num-iterations", "2", "--block-size", "1"]
WORDS = ["OptimizationDriver", "--model", "objective.py", *OPTIONS]


@pytest.mark.parametrize("how", some_of(["plainly", "by a wrapper", "unwatched", "with ULFM"]))
def test_no_rank_outlives_an_mpirun_that_is_killed_while_it_computes(tmp_path, monkeypatch, how):
    monkeypatch.setenv(MARK, number := os.urandom(8).hex())
    if how == "with ULFM":
        use_ulfm(monkeypatch)
    words = [str(launcher.BIN / WORDS[0]), *WORDS[1:], "--hang-timeout", "0" if how == "unwatched" else "600"]
    run, model = tmp_path / "checkpoints/S", tmp_path / "objective.py"
    model.write_text(COMPUTES)
    job = launcher.Job(3, ["bash", "-c", '"$0" "$@"; exit $?', *words] if how == "by a wrapper" else words, tmp_path)
    job.wait_for(run, "FoldBegan", 2)
    job.process.kill()
    job.process.wait()
    assert seen_within(30, lambda: not marked(number))
    (tmp_path / "quick").touch()
    launcher.Job(3, [*words, "--opt-restore"], tmp_path).wait(120)
    ledger = read_ledger(run)
    assert ledger.n_by_state()["complete"] == 2
    assert [event["counts"] for event in events_of(run, "AssignmentLost")] == [False, False]


@pytest.mark.proof
def test_a_rank_that_is_blocked_or_stopped_does_not_outlive_its_mpirun_either(tmp_path, monkeypatch):
    monkeypatch.setenv(MARK, number := os.urandom(8).hex())
    (tmp_path / "objective.py").write_text(COMPUTES)
    job = launcher.start(3, WORDS, tmp_path)
    job.wait_for(tmp_path / "checkpoints/S", "FoldBegan", 2)
    job.rank(2).suspend()
    job.process.kill()
    job.process.wait()
    assert seen_within(30, lambda: not marked(number))


SCRIPT_THAT_COMPUTES = """
import time
import nnlo_opt

def objective(x):
    open("began", "w").close()
    for _ in range(60_000):
        time.sleep(0.01)

nnlo_opt.optimize(objective, {"x": nnlo_opt.Real(0, 1)}, num_iterations=2)
"""


@pytest.mark.proof
def test_no_rank_of_a_script_outlives_an_mpirun_that_is_killed_while_it_computes(tmp_path, monkeypatch):
    monkeypatch.setenv(MARK, number := os.urandom(8).hex())
    (tmp_path / "search.py").write_text(SCRIPT_THAT_COMPUTES)
    job = launcher.Job(2, [sys.executable, "search.py"], tmp_path)
    assert seen_within(60, (tmp_path / "began").exists)
    job.process.kill()
    job.process.wait()
    assert seen_within(30, lambda: not marked(number))


#: leaves processes in other sessions, and waits for the test once; its workers ignore SIGTERM
SCRIPT = f"""
import os, sys
if not os.path.exists(sys.argv[1] + "/seen"):
    exec({STUBBORN!r})
print('{{"value": 1}}')
"""
SPACE = "from nnlo_opt.space import Real\nparameter_range = [Real(0.0, 1.0, name='x')]\n"


@pytest.mark.proof
@pytest.mark.parametrize("kills", ["the supervisor", "the guard", "the rank with the supervisor"])
def test_nothing_is_left_of_a_script_whose_supervisor_is_killed(tmp_path, monkeypatch, kills):
    monkeypatch.setenv(MARK, number := os.urandom(8).hex())
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "space.py").write_text(SPACE)
    text, run = f"{sys.executable} train.py {tmp_path} {{x}}", tmp_path / "checkpoints/S"
    options = ["--search-space", "space.py", "--checkpoint", "S", "--num-iterations", "1"]
    words = ["OptimizationDriver", "--command", text, *options]
    job = launcher.start(2, words, tmp_path)
    logs = (run / "trials").glob
    assert seen_within(60, lambda: b"born" in b"".join(log.read_bytes() for log in logs("*/output-0.log")))
    of_script = [
        process for process in job.family() if process.cmdline()[1:3] == [str(tmp_path / "train.py"), str(tmp_path)]
    ]
    supervisor = of_script[0].parent()
    guard = supervisor.parent()
    assert guard.ppid() == job.rank(1).pid
    (tmp_path / "seen").touch()
    for process in {"the guard": [guard], "the supervisor": [supervisor]}.get(kills, [job.rank(1), supervisor]):
        process.kill()
    psutil.wait_procs(of_script, timeout=30)
    assert not [process for process in of_script if process.is_running()]
    if kills == "the rank with the supervisor":
        job.wait(60, code=None)
        assert seen_within(30, lambda: not marked(number))
        launcher.run(2, [*words, "--opt-restore"], tmp_path)
    else:
        assert "attempt 2 of 3: the command ended by SIGKILL" in job.wait(60).out
    (row,) = rows(tmp_path)
    assert (row["state"], row["attempt"]) == ("complete", "2")
    assert [event["counts"] for event in events_of(run, "AssignmentLost")] == [True]
    assert not marked(number)
