"""Files that a command names: its code, and all others."""

import os
import shlex
import shutil
import sys

import pytest

from nnlo_opt.engine.objective.named_files import named_files

#: file -> its text
FILES = {
    "train.py": "print(1)",
    "other.py": "print(2)",
    "run.sh": "echo",
    "tool": "#!/bin/sh\n",
    "run.log": "epoch 1",
    "data.csv": "1,2",
    "config.yaml": "lr: 1",
    "snapshot.pt": "weights",
}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    for name in ("simulate", "second"):
        shutil.copy("/bin/true", tmp_path / name)
    os.mkfifo(tmp_path / "pipe")


@pytest.mark.parametrize(
    ("command", "code", "others"),
    [
        ("python train.py --lr {lr}", "train.py", ""),
        ("python train.py --log run.log --data=data.csv", "train.py", "run.log data.csv"),
        ("python -u train.py other.py", "train.py", "other.py"),
        ("python --config config.yaml train.py", "train.py", "config.yaml"),
        ("python -m package --config config.yaml", "", "config.yaml"),
        ("bash run.sh train.py", "run.sh", "train.py"),
        ("./tool train.py snapshot.pt", "tool train.py", "snapshot.pt"),
        ("./train.py", "train.py", ""),
        ("torchrun --nproc-per-node 2 ./train.py", "train.py", ""),
        ("./simulate --data data.csv", "simulate", "data.csv"),
        ("mpirun -n 2 ./simulate ./second", "simulate", "second"),
        ("./simulate train.py", "train.py", "simulate"),
        ("python train.py train.py run.log=run.log", "train.py", "run.log"),
        ("python train.py pipe . missing.log {folder}/run.log", "train.py", ""),
        (f"python train.py {'x' * 5000} 'a\0b'", "train.py", ""),
    ],
)
def test_the_program_and_the_script_are_the_code_of_a_command(command, code, others):
    found = named_files(shlex.split(command))
    assert [*found.code] == code.split()
    assert [*found.others] == others.split()


def test_a_program_of_the_system_is_no_code_of_a_command_with_a_script():
    found = named_files([os.path.realpath(sys.executable), "train.py"])
    assert [*found.code] == ["train.py"]
    assert len(found.others) == 1


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read_has_no_fingerprint(tmp_path):
    (tmp_path / "run.log").chmod(0)
    assert not named_files(["python", "train.py", "run.log"]).others


def test_a_fingerprint_is_of_what_stands_in_a_file(tmp_path):
    first = named_files(["python", "train.py"]).code
    (tmp_path / "train.py").write_text("print(2)")
    assert named_files(["python", "train.py"]).code != first
