"""A search watched from a second terminal, and the line at the bottom of its own, under real mpirun."""

import pytest

from nnlo_opt.app.reporting.terminal import CLEAR
from tests.helpers import launcher, objectives

pytestmark = [pytest.mark.mpi, pytest.mark.proof]

#: trials take a while, so that somebody can look
SLOW = objectives.module("""
    import time
    for epoch in (1, 2, 3, 4):
        time.sleep(0.3)
        report(epoch, parameters["x"] / epoch)
    return parameters["x"]
""")


def test_a_search_is_watched_from_a_second_terminal_and_its_own_lines_stay_whole(tmp_path):
    (tmp_path / "slow.py").write_text(SLOW)
    command = [launcher.find_mpirun(), "-np", "3", str(launcher.BIN / "OptimizationDriver"), "--model", "slow.py"]
    command += ["--num-iterations", "6", "--checkpoint", "W", "--hyper-opt", "random", "--log-file", "log"]
    driver = launcher.Terminal(command, tmp_path)
    run = tmp_path / "checkpoints/W"
    assert launcher.seen_within(90, (run / "run.lock").exists)
    watcher = launcher.Terminal([str(launcher.BIN / "nnlo-opt"), "watch", str(run), "--interval", "0.2"], tmp_path)
    shown, code = watcher.wait()
    assert code == 0, shown
    assert "\x1b[?1049h" in shown, "the page has no screen of its own"
    page, _, last = shown.rpartition("\x1b[?1049l")
    assert "\x1b[?25h" in shown, "the cursor is lost"
    assert sum(f" {n}/6 trials" in page for n in range(6)) > 2, "the number of trials does not move"
    assert sum(f"  {epoch}  " in page for epoch in (1, 2, 3)) > 1, "the epochs of a trial do not move"
    assert "finished (all trials are done)" in last
    shown, code = driver.wait()
    assert code == 0, shown
    rows = [row.rpartition(CLEAR)[2].rstrip("\r") for row in shown.split("\n")]
    assert [row for row in rows if row] == [line for line in (tmp_path / "log").read_text().split("\n") if line]
    assert f"{CLEAR}━━" in shown
