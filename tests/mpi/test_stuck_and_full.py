"""A trial that never returns, and a disk that is full, with real ranks."""

import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from nnlo_opt.app.reporting.results import read_ledger
from tests.helpers import launcher, objectives

pytestmark = [pytest.mark.mpi, pytest.mark.proof]


def command(folder: Path, seconds: float, *options: str) -> list[str]:
    (folder / "stuck.py").write_text(objectives.STUCK.replace("SECONDS", str(seconds)))
    return ["OptimizationDriver", "--model", "stuck.py", "--hyper-opt", "random", "--num-iterations", "3", *options]


def test_a_block_that_is_stuck_ends_the_search_which_continues_without_that_trial(tmp_path):
    options = ["--checkpoint", "S", "--opt-restore", "--trial-timeout", "2"]
    outcome = launcher.run(3, command(tmp_path, 1000, *options), tmp_path, code=1)
    assert "Block 1 is stuck in the model's code" in outcome.err
    assert "Traceback" not in outcome.err
    ledger = read_ledger(tmp_path / "checkpoints/S")
    assert ledger.trials[0].reason == "it took longer than `--trial-timeout`, 2 s"
    launcher.run(3, command(tmp_path, 1000, *options), tmp_path, code=1)
    assert [trial.state for trial in read_ledger(tmp_path / "checkpoints/S").trials] == ["failed", "failed"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    done = subprocess.run(mount, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"needs root, to mount a file system: {done.stderr.decode().strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_search_waits_where_the_disk_is_full_says_so_and_loses_nothing(tmp_path, small_disk):
    run = small_disk / "D"
    job = launcher.start(3, command(tmp_path, 0.05, "--checkpoint", str(run), "--num-iterations", "60"), tmp_path)
    try:
        job.wait_for(run, "TrialCompleted", 1)
        with (small_disk / "filler").open("wb", buffering=0) as filler, suppress(OSError):
            while True:
                filler.write(bytes(4096))
        job.wait_for_words("cannot be written (No space left on device): free some space")
        assert job.process.poll() is None, "ended where it should wait"
        (small_disk / "filler").unlink()
    finally:
        outcome = job.wait(60)
    assert "Traceback" not in outcome.err
    assert len((run / "results.csv").read_text().splitlines()) == 61
    ledger = read_ledger(run)
    assert ledger.complete
    assert ledger.n_by_state()["complete"] == 60
