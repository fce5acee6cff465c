"""Checks on a machine that is made to fail: each failure is real."""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from nnlo_opt.core.trials.run_lock import RunLock
from nnlo_opt.engine.runtime.environment import THREAD_VARIABLES
from nnlo_opt.tools.doctor.examination import Examination
from nnlo_opt.tools.doctor.judgement import Finding

STATES = ("fine", "remark", "broken")


def examination(folder: Path, *, mpirun: str = "mpirun", timeout_s: float = 60.0, **more) -> Examination:
    return Examination(starter=[mpirun], n_ranks=None, folder=folder, timeout_s=timeout_s, **more)


def worst(findings: Iterable[Finding]) -> str:
    """The gravest state, with the sentences about it."""
    findings = [*findings]
    state = max((finding.state for finding in findings), key=STATES.index)
    said = [f"{finding.text} {finding.remedy}" for finding in findings if finding.state == state]
    return " ".join([f"{state}:", *said])


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def site(tmp_path, monkeypatch) -> Path:
    """A folder from which every Python imports first."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(str(folder))
    return folder


@pytest.fixture
def small(tmp_path) -> Iterator[Path]:
    """A file system of 4 MB."""
    place = tmp_path / "small"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "nnlo", place]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("may not mount")
    yield place
    subprocess.run(["umount", place], check=True)


# ---------------------------------------------------------------- launcher


@pytest.mark.proof
def test_a_launcher_that_never_answers_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr("nnlo_opt.tools.doctor.examination.VERSION_S", 0.5)
    mpirun = script(tmp_path / "mpirun", "sleep 1000")
    assert f"broken: `{mpirun} --version` gives no answer." in worst(examination(tmp_path, mpirun=mpirun).mpi())


def test_ranks_that_never_start_are_given_up_and_nothing_of_them_is_left(tmp_path):
    own = ["sleep", f"{1000 + os.getpid() / 1e6:f}"]  # no other test sleeps for so long
    mpirun = script(tmp_path / "mpirun", f"{' '.join(own)} & {' '.join(own)}")
    said = worst(examination(tmp_path, mpirun=mpirun, timeout_s=0.5, has_mpi=True).ranks())
    assert said.startswith("broken: 0 of 2 ranks have started. It was ended after 0.5 s. Try `mpirun hostname`")
    assert not [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == own]
    assert list(tmp_path.iterdir()) == [tmp_path / "mpirun"]


# ---------------------------------------------------------------- cores, threads


@pytest.mark.skipif(sys.platform != "linux", reason="chooses cores as Linux does")
def test_one_core_is_too_little_for_three_ranks_that_train(tmp_path):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert worst(examination(tmp_path, n_here=4).cores()).startswith("remark: 1 of ")
    finally:
        os.sched_setaffinity(0, before)


@pytest.mark.parametrize(("files", "membership"), [
    ({"cpu.max": "max 100000"}, "0::/"),
    ({"cpu.max": "50000 100000\n"}, "0::/job"),
    ({"cpu/cpu.cfs_quota_us": "50000\n", "cpu/cpu.cfs_period_us": "100000\n"}, "4:cpu,cpuacct:/job"),
])  # fmt: skip
def test_a_control_group_limits_the_cores(tmp_path, monkeypatch, files, membership):
    monkeypatch.setattr("nnlo_opt.engine.data.memory._GROUPS", tmp_path)
    monkeypatch.setattr("nnlo_opt.engine.data.memory._memberships", lambda: [membership])
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    has_limit = "max 100000" not in files.values()
    assert ("allows the time of 0.5. Set `OMP_NUM_THREADS=1`" in worst(examination(tmp_path).cores())) == has_limit


def test_64_threads_of_each_rank_are_too_many(tmp_path, monkeypatch):
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    of = examination(tmp_path, n_here=999)
    monkeypatch.setenv("MKL_NUM_THREADS", "1")
    assert worst(of.threads()).startswith("fine: ")
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    assert worst(of.threads()).startswith("remark: `OMP_NUM_THREADS=64` makes 63872 threads on ")
    monkeypatch.setenv("OMP_NUM_THREADS", "many")
    assert worst(of.threads()).startswith("remark: `OMP_NUM_THREADS=many` makes 0 threads")


# ---------------------------------------------------------------- folder


def test_a_folder_that_can_keep_runs_is_left_as_it_was():
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:  # other folders of tests may lie in memory
        assert ": locks, renames, " in worst(examination(Path(folder)).disk())
        assert not os.listdir(folder)


@pytest.mark.proof
def test_a_file_system_that_is_full_or_read_only_is_found(small):
    remarks = [one for one in examination(small).disk() if one.state == "remark"]
    assert "(tmpfs) is in memory" in worst(remarks)
    (small / "big").write_bytes(b"1" * 3_800_000)
    said = worst(examination(small).disk())
    assert "(tmpfs) has 0 MB free." in said
    assert "fails at the step `write`. It says: OSError: [Errno 28] No space left on device" in said
    subprocess.run(["mount", "-o", "remount,ro", small], check=True)
    assert "Read-only file system" in worst(examination(small).disk())


@pytest.mark.parametrize(("flock", "sentence"), [
    ("raise OSError(37, 'No locks available')", "remark: .* has no locks: `run.owner` guards a run.*--cache-data"),
    ("raise OSError(5, 'Input/output error')", "broken: .* fails at the step `lock`. It says: .*Input/output error"),
    ("return None", "broken: .* gives its lock to two processes at once"),
])  # fmt: skip
def test_a_file_system_without_locks_is_found(site, tmp_path, flock, sentence):
    (site / "sitecustomize.py").write_text(f"import fcntl\ndef flock(file, how):\n    {flock}\nfcntl.flock = flock\n")
    said = worst(one for one in examination(tmp_path).disk() if "lock" in one.text and "MB/s" not in one.text)
    assert re.match(sentence, said, re.DOTALL)


@pytest.mark.proof
def test_a_step_that_hangs_is_named(site, tmp_path):
    (site / "sitecustomize.py").write_text("import os, time\nos.replace = lambda *names: time.sleep(1000)\n")
    assert "fails at the step `replace`. It was ended after 4 s." in worst(examination(tmp_path, timeout_s=4.0).disk())


def test_a_run_at_work_is_named(tmp_path):
    with closing(RunLock(tmp_path, 0.0)):
        said = worst(one for one in examination(tmp_path).disk() if "coordinator" in one.text)
    assert said.startswith(f"remark: A coordinator is at work there (process {os.getpid()} on ")


# ---------------------------------------------------------------- frameworks, GPUs


@pytest.mark.parametrize(("text", "sentence"), [
    ("import no_library_of_torch", "It says: ModuleNotFoundError: No module named 'no_library_of_torch'"),
    ("import os; os.abort()", "It says: exit code -6"),
    ("import time; time.sleep(1000)", "It was ended after 1 s."),
])  # fmt: skip
def test_a_framework_that_cannot_be_imported_is_found(site, text, sentence):
    (site / "torch.py").write_text(text)
    said = worst(examination(site, timeout_s=1.0 if "sleep" in text else 60.0).framework("torch"))
    assert said.startswith(f"broken: It is installed, but cannot be imported. {sentence}")


def test_a_framework_that_sees_no_gpu_is_found(site, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    (site / "torch.py").write_text("__version__ = '0'\nclass cuda:\n    device_count = staticmethod(lambda: 0)\n")
    of = examination(site)
    assert worst(of.framework("torch")).startswith("fine: 0, imported in ")
    assert "remark: 2: 0, 3, by `CUDA_VISIBLE_DEVICES=0,3`. Seen by none of torch." in worst(of.gpus())


# ---------------------------------------------------------------- leftovers


def test_folders_of_dead_mpiruns_are_found_and_those_of_living_ones_are_not(tmp_path, monkeypatch):
    monkeypatch.setenv("PRTE_MCA_prte_tmpdir_base", str(tmp_path))
    done = subprocess.Popen(["true"])
    done.wait()
    for pid in (done.pid, os.getpid()):
        (tmp_path / f"ompi.{pid}").mkdir()
    said = worst(examination(tmp_path).leftovers())
    assert said.startswith(f"remark: 1 folders of killed mpiruns are in {tmp_path}:")
    (command,) = re.findall("`(.+)`", said)
    subprocess.run(["bash", "-c", command], check=False)
    assert [path.name for path in tmp_path.iterdir()] == [f"ompi.{os.getpid()}"]
