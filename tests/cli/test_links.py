"""Runs in which another user has put links, FIFOs and huge files: commands follow none, and wait for none."""

import os
import shutil
import signal

import pytest

from nnlo_opt.cli import tool
from nnlo_opt.core.base.errors import EXIT_OK, EXIT_PREEMPTED, EXIT_WRONG_REQUEST
from tests.helpers.stories import START, failed, trial, write_journal

#: folders and files of a run that may be links; the journal itself has a test of its own
FOLDERS = ("trials", "trials/0000", "trials/0000/fold0", "logs", "timeline", "figures", "tensorboard", "inbox")
FOLDERS += ("deaths", "unrecorded", "csv", "parquet", "mlruns", "wandb-offline", ".checkpoint-1.0123456789ab")
FILES = ("config.json", "results.csv", "summary.json", "report.html", "timeline.json", "optuna.log", "journal.synced")
FILES += ("best_model.keras", "run.owner", "run.lock", "launch.lock", "launch.begins", "net_x_history.json")
#: names of files that commands write, or remove, in folders of a run
INSIDE = ("checkpoint-1/master.npz", "fold0/weights.npz", "0000/fold0/weights.npz", "weights.npz", "rank-00000.json")
INSIDE += ("1-2.json", "trial-0000/f", "trial-9999/f", "nnlo_opt-export.json", "history.png", "trials.csv", "taxes.ods")

COMMANDS = [
    *(["show", "{}"], ["show", "{}", "0"], ["report", "{}"], ["report", "{}", "--figures"], ["best-model", "{}"]),
    *(["repair", "{}"], ["export", "{}", "--to", "csv", "--overwrite"], ["watch", "{}"], ["status", "{}", "--json"]),
    *(["enqueue", "{}", "x=3"], ["stop", "{}"], ["best", "{}"], ["ensemble", "{}"], ["list", "{}"], ["list", "{}/.."]),
    *(["compare", "{}", "{}"], ["clean", "{}", "--yes", "--keep-weights", "best:1"], ["clean", "{}/..", "--yes"]),
]
#: those that need no package; plots take their time
PLAIN = [pytest.param(argv, marks=[pytest.mark.proof] * ("--figures" in argv)) for argv in COMMANDS]
EXPORTS = ["optuna", "tensorboard", "parquet", "mlflow", "wandb-offline"]
PACKAGES = {"parquet": "pyarrow", "wandb-offline": "wandb"}
COMMANDS += [
    pytest.param(["export", "{}", "--to", name, "--overwrite"], marks=pytest.mark.needs(PACKAGES.get(name, name)))
    for name in EXPORTS
]


def content(folder):
    """All below a folder, links among it, with the bytes and the times of files."""
    return {
        path: (path.read_bytes(), path.stat().st_mtime_ns) if path.is_file() else path.is_symlink()
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture
def home(tmp_path):
    """Folder of a user, with files of the names that commands write to and remove."""
    folder = tmp_path / "home"
    for name in (*INSIDE, *(f"file/{name}" for name in FILES)):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"precious")
        os.utime(folder / name, (1, 1))
    return folder


def run_of_links(folder, home, names):
    """A run of three trials, of which `names` are links to `home`; the other files are sound."""
    run = folder / "run"
    for number in range(3):
        (run / f"trials/{number:04d}/fold0/checkpoint-1").mkdir(parents=True)
        (run / f"trials/{number:04d}/fold0/weights.npz").write_bytes(b"weights")
    write_journal(run, [START, *trial(0, 0.5), *trial(1, 0.25), *failed(2, "no")])
    for name in names:
        path = run / name
        if path.is_dir():
            shutil.rmtree(path)
        if not path.parent.is_symlink():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            path.symlink_to(home / "file" / name if name in FILES else home)
    return run


NO_LOCKS = tuple(name for name in FOLDERS + FILES if "lock" not in name)


@pytest.mark.parametrize("argv", COMMANDS, ids=" ".join)
@pytest.mark.parametrize("names", [FOLDERS + FILES, NO_LOCKS, FOLDERS[2:]], ids=["all", "all but locks", "a fold"])
def test_no_command_changes_anything_through_a_link(here, home, argv, names, capsys):
    run, before = run_of_links(here / "runs", home, names), content(home)
    assert tool.main([word.format(run) for word in argv]) in (EXIT_OK, EXIT_WRONG_REQUEST, EXIT_PREEMPTED)
    assert content(home) == before
    assert "Traceback" not in capsys.readouterr().err


def huge(path):
    with path.open("wb") as file:
        os.truncate(file.fileno(), 2**42)


#: files of a run that commands read, or write in place
SPECIAL = (*FILES, "inbox/1.json", "inbox/2.json", "deaths/1.json", "unrecorded/assignment-000001.json")
SPECIAL += ("timeline/rank-00000.json", "trials/0000/fold0/history.json", "trials/0000/fold0/weights.npz")


@pytest.mark.parametrize("argv", PLAIN, ids=" ".join)
@pytest.mark.parametrize("make", [os.mkfifo, huge], ids=["FIFO", "4 TB"])
def test_no_command_waits_for_a_special_file_or_reads_a_huge_one(tmp_path, argv, make, monkeypatch, capsys):
    run = run_of_links(tmp_path / "runs", tmp_path, ())
    for path in map(run.joinpath, SPECIAL):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        make(path)
    monkeypatch.chdir(tmp_path)
    signal.alarm(120)  # which ends a test that waits
    try:
        assert tool.main([word.format(run) for word in argv]) in (EXIT_OK, EXIT_WRONG_REQUEST, EXIT_PREEMPTED)
    finally:
        signal.alarm(0)
    assert "Traceback" not in capsys.readouterr().err
