"""Searches on a file system without locks: one at a time, killed and resumed from the last save, whatever its epoch."""

import errno
import signal

import pytest

from nnlo_opt.core.base.errors import EXIT_WRONG_REQUEST
from nnlo_opt.core.trials.owner import OWNER_NAME, read_owner
from tests.helpers import launcher
from tests.helpers.no_locks import without_locks
from tests.helpers.objective_runs import begin, rows, search

pytestmark = [pytest.mark.mpi, pytest.mark.proof]

#: saves epochs 5, 1, 2, then waits in its first attempt until it is killed
DISORDER = """
import os, time
from nnlo_opt.space import Real


def objective(parameters, report, checkpoint):
    if checkpoint.folder is not None:
        return int((checkpoint.folder / "n").read_text())
    for n, epoch in enumerate([5, 1, 2]):
        checkpoint.save(epoch, lambda folder: (folder / "n").write_text(str(n)))
        report(epoch, 1.0)
    while os.environ.get("WAITS"):
        time.sleep(0.1)
    return -1.0


objective.parameter_range = [Real(0.0, 1.0, name="x")]
"""


@pytest.mark.parametrize("struck", ["rank 0", "all"])
def test_a_search_without_locks_is_killed_and_resumed_from_its_last_save(tmp_path, monkeypatch, struck):
    for name in ("LD_PRELOAD", "NO_LOCKS_ERRNO", "PYTHONPATH"):
        if value := without_locks(tmp_path, errno.ENOLCK).get(name):
            monkeypatch.setenv(name, value)
    options = ["--block-size", "1", "--hyper-opt", "random", "--num-iterations", "1"]
    monkeypatch.setenv("WAITS", "1")
    job = begin(tmp_path, DISORDER, 2, *options)
    run = tmp_path / "checkpoints/S"
    job.wait_for(run, "EpochEnded", 3)
    (tmp_path / "again").mkdir()
    second = search(tmp_path, DISORDER, 2, *options, "--opt-restore", code=EXIT_WRONG_REQUEST)
    assert f"(process {read_owner(run)['pid']} on " in second.err
    if struck == "all":
        job.kill()
    else:
        job.rank(0).send_signal(signal.SIGKILL)
        job.wait(60, None)
    assert (run / OWNER_NAME).exists()
    resumed = search(tmp_path, DISORDER, 2, *options, "--opt-restore")
    assert resumed.err.count("without locks") == 1
    assert [event["epoch"] for event in launcher.events_of(run, "FoldBegan")] == [0, 2]
    assert [float(row["figure_of_merit"]) for row in rows(tmp_path)] == [2.0]
    assert not (run / OWNER_NAME).exists()
