"""Working folders of trials: links, what is left of them, words of a command."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nnlo_opt.core.trials.identity import ScriptFolders
from nnlo_opt.core.trials.kept_weights import FILES_NAME
from nnlo_opt.engine.objective.working_folder import WorkingFolder, is_code


@pytest.fixture
def start(tmp_path):
    """A starting folder with code, data and what a first try by hand has left."""
    start = tmp_path / "project"
    for name in ("data/deep", "package", "runs", "lightning_logs/version_0"):
        (start / name).mkdir(parents=True)
    for name in ("data/a.csv", "data/deep/b.csv", ".hidden", "train.py", "snapshot.pt", "package/__main__.py"):
        (start / name).write_text("by hand")
    (tmp_path / "above.csv").write_text("above")
    return start


@pytest.fixture
def make(start, tmp_path):
    """Returns a working folder of trial 7; each call is a further attempt."""
    directory = start / "runs/R/trials/0007"

    def make(kind="links", own=(), without=("runs",)):
        names = [name for name in sorted(os.listdir(start)) if name not in without] * (kind == "links")
        return WorkingFolder(directory, ScriptFolders(kind=kind, start=str(start), names=names, own=[*own]))

    return make


def here(folder):
    return Path(str(folder.path))


def test_every_name_is_an_absolute_link_while_an_attempt_lasts(make, start):
    folder = make(own=["snapshot.pt"])
    folder.open()
    links = {path.name: os.readlink(path) for path in here(folder).iterdir()}
    names = {".hidden", "data", "lightning_logs", "package", "train.py"}
    assert links == {name: str(start / name) for name in names}
    assert here(folder).name == FILES_NAME
    assert not folder.close()
    assert not list(here(folder).iterdir())


def test_what_the_script_wrote_stays_and_a_file_in_place_of_a_link_is_its_own(make, start):
    folder = make()
    folder.open()
    (here(folder) / "state").write_text("1")
    (here(folder) / "latest").symlink_to("state")
    (here(folder) / "data.zip").symlink_to("/no/such/data.zip")
    (here(folder) / "new").write_text("replaced whole")
    os.replace(here(folder) / "new", here(folder) / "snapshot.pt")
    assert not folder.close(), "nothing is shared that has changed"
    assert {path.name for path in here(folder).iterdir()} == {"state", "latest", "data.zip", "snapshot.pt"}
    again = make()
    again.open()
    assert (here(again) / "snapshot.pt").read_text() == "replaced whole"
    assert (here(again) / "state").read_text() == "1"
    assert (here(again) / "data").is_symlink()
    assert (start / "snapshot.pt").read_text() == "by hand"


def test_links_of_a_killed_attempt_go_also_if_a_name_is_the_trials_own_now(make):
    make().open()
    folder = make(own=["snapshot.pt"])
    folder.open()
    assert not os.path.lexists(here(folder) / "snapshot.pt")


def test_a_name_that_is_gone_has_no_dangling_link(make, start):
    folder = make()
    (start / "snapshot.pt").unlink()
    folder.open()
    assert not os.path.lexists(here(folder) / "snapshot.pt")


def _append(start):
    with (start / "snapshot.pt").open("a") as file:
        file.write("more")


CHANGES = {
    "snapshot.pt": _append,
    "lightning_logs": lambda start: (start / "lightning_logs/version_1").mkdir(),
    "data": lambda start: (start / "data/deep/b.csv").write_text("longer than before"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_all_trials_share_is_named_if_a_script_has_changed_it(make, name):
    folder = make()
    folder.open()
    CHANGES[name](here(folder))
    assert folder.close() == [name]


def test_a_shared_file_that_was_removed_has_changed(make, start):
    folder = make()
    folder.open()
    (start / "snapshot.pt").unlink()
    assert folder.close() == ["snapshot.pt"]


def test_what_python_compiles_is_no_change(make, start):
    folder = make()
    folder.open()
    (start / "package/__pycache__").mkdir()
    (start / "package/__pycache__/a.pyc").touch()
    assert not folder.close()


def test_a_huge_folder_is_known_by_its_time_alone(make, start):
    for number in range(3000):
        (start / f"data/{number}").touch()
    folder = make()
    folder.open()
    assert not folder.close()
    folder.open()
    (start / "data/new").touch()
    assert folder.close() == ["data"]


def test_a_change_counts_for_the_attempt_and_not_for_its_restart(make, start):
    folder = make()
    folder.open()
    _append(start)
    folder.open()  # its port was taken
    assert folder.close() == ["snapshot.pt"]


@pytest.mark.parametrize("kind", ["links", "empty"])
def test_words_that_lead_out_of_the_folder_and_code_are_absolute(make, start, tmp_path, kind):
    (start / "run.sh").write_text("#!/bin/sh\n")
    (start / "tool").write_text("#!/usr/bin/perl\n")
    (start / "python").touch()
    words = {
        "python": "python",
        "train.py": f"{start}/train.py",
        "./run.sh": f"{start}/run.sh",
        "tool": f"{start}/tool",
        "package": f"{start}/package",
        "--data=../above.csv": f"--data={tmp_path}/above.csv",
        "../project/data": f"{start}/data",
        "../none": "../none",
        "data/a.csv": "data/a.csv" if kind == "links" else f"{start}/data/a.csv",
        "--init=runs/x.pt": f"--init={start}/runs/x.pt",
        "snapshot.pt": "snapshot.pt",
        ".": ".",
        "-5": "-5",
        "": "",
        "x" * 5000: "x" * 5000,
        "a\0b": "a\0b",
        "/etc/hostname": "/etc/hostname",
    }
    (start / "runs/x.pt").touch()
    assert make(kind, own=["snapshot.pt"]).placed([*words], [*words]) == [*words.values()]


def test_a_value_of_a_parameter_is_no_path_unless_it_looks_like_one(make, start, tmp_path):
    (start / "adam").mkdir()
    (start / "sgd").write_text("#!/bin/sh")
    given = ["python", "train.py", "--optimizer=adam", "sgd", "--model=train.py", "../above.csv"]
    found = ["python", f"{start}/train.py", "--optimizer=adam", "sgd", f"--model={start}/train.py"]
    assert make("empty").placed(given, ["python", "train.py"]) == [*found, str(tmp_path / "above.csv")]


def test_the_name_of_a_module_is_no_path(make):
    assert make("empty").placed(words := ["python", "-m", "package", "package"], words)[2] == "package"


def test_a_program_is_found_where_the_search_was_started(make, start, monkeypatch):
    (start / "bin").mkdir()
    (start / "bin/program").write_text("#!/bin/sh\n")
    (start / "bin/program").chmod(0o755)
    monkeypatch.chdir(start)
    assert make().placed(["bin/program"], []) == [f"{start}/bin/program"]
    monkeypatch.setenv("PATH", "bin:/usr/bin")
    assert make().placed(["program", "-c"], []) == [f"{start}/bin/program", "-c"]


def test_a_file_that_the_command_names_in_an_empty_folder_is_shared_and_said(make, start):
    folder = make("empty")
    folder.open()
    assert folder.placed(["cat", "snapshot.pt"], ["snapshot.pt"]) == ["cat", f"{start}/snapshot.pt"]
    _append(start)
    assert folder.close() == ["snapshot.pt"]


def test_a_folder_that_holds_the_run_is_no_news(make, start):
    folder = make()
    folder.open()
    assert folder.placed(["cat", "runs"], ["runs"]) == ["cat", f"{start}/runs"]
    (start / "runs/other").mkdir()
    assert not folder.close()


def test_lists_of_folders_in_the_environment_are_absolute(make, start):
    given = {"PYTHONPATH": "src:/opt", "PATH": "/bin", "PWD": "/elsewhere", "OTHER": "src"}
    folder = make()
    found = {"PYTHONPATH": f"{start}/src:/opt", "PATH": "/bin", "PWD": str(here(folder)), "OTHER": "src"}
    assert folder.environ(given) == found
    assert make("here").environ(given) == given


def test_all_scripts_start_in_one_folder_if_that_is_asked(make):
    folder = make("here")
    folder.open()
    assert here(folder).is_dir(), "it is still {folder}"
    assert folder.cwd is None
    words = ["python", "train.py", "../above.csv"]
    assert folder.placed(words, words) == words
    assert not folder.close()


def test_a_link_in_place_of_the_folder_is_refused(make, tmp_path):
    folder = make()
    here(folder).parent.mkdir(parents=True)
    here(folder).symlink_to(tmp_path)
    with pytest.raises(OSError):
        folder.open()
    assert not os.path.lexists(tmp_path / "train.py")


def test_code_is_known_by_its_ending_its_first_bytes_or_its_rights(tmp_path):
    for name, text in {"a.PY": "", "b.R": "", "c": "#!x", "d.csv": "1", "e": ""}.items():
        (tmp_path / name).write_text(text)
    os.mkfifo(tmp_path / "f")
    (tmp_path / "e").chmod(0o755)
    names = ["a.PY", "b.R", "c", "d.csv", "e", "f", "none"]
    assert [name for name in names if is_code(tmp_path / name)] == ["a.PY", "b.R", "c", "e"]


#: prints what the guide says of a script in its folder
FACTS = """
import json, os, sys
from pathlib import Path
import beside

place = str(Path(__file__).resolve().parent)
print(json.dumps([os.getcwd(), os.environ["PWD"], sys.path[0], place, beside.__file__, os.path.exists("../data")]))
"""


def test_a_script_finds_its_modules_and_itself_in_the_starting_folder(make, start):
    (start / "train.py").write_text(FACTS)
    (start / "beside.py").touch()
    folder = make()
    folder.open()
    words = folder.placed([sys.executable, "train.py"], ["train.py"])
    out = subprocess.run(words, cwd=folder.cwd, env=folder.environ(os.environ), check=True, stdout=subprocess.PIPE)
    where, home = str(here(folder)), str(start)
    assert json.loads(out.stdout) == [where, where, home, home, f"{home}/beside.py", False]
    assert not folder.close(), "what Python has compiled is no change"
