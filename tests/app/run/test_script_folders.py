"""Where the scripts of a run start, on its first start and on later ones."""

import os
import sys
from contextlib import closing
from pathlib import Path

import pytest

from nnlo_opt.app.commands.driver_options import driver_options
from nnlo_opt.app.run.start.script_folders import MOST_NAMES, folders_of
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.run_directory import open_run
from tests.helpers.refusals import check_refused


@pytest.fixture
def start(tmp_path, monkeypatch):
    """The working folder: a project with a repository and runs."""
    start = tmp_path / "project"
    for name in (".git", ".venv", "data", "checkpoints/old"):
        (start / name).mkdir(parents=True)
    for name in ("train.py", ".env", "snapshot.pt"):
        (start / name).touch()
    monkeypatch.chdir(start)
    return start


class Starts:
    """Starts of a run; each records what was decided."""

    def __init__(self):
        self.said = []

    def __call__(self, *given, checkpoint="R", settings=None):
        self.said.clear()
        words = ["--command", f"{sys.executable} train.py {{args}}", "--checkpoint", checkpoint, *given]
        options = driver_options("OptimizationDriver", words)
        with closing(open_run(options.run, options.run.name)) as directory:
            folders = folders_of(options, directory, self.said.append)
            known = {"scripts": folders.to_json()} if settings is None else settings
            directory.journal.append(
                [ev.RunStarted(time_s=0.0, unix_s=1e9, n_ranks=1, n_blocks=1, identity={}, settings=known)]
            )
        return folders


@pytest.fixture
def begin(start):
    return Starts()


def refused(begin, *given, **keywords):
    return check_refused("", begin, *given, **keywords)


def test_all_names_are_linked_but_the_repository_and_what_holds_the_runs(begin):
    folders = begin()
    assert folders.kind == "links"
    assert folders.linked == [".env", ".venv", "data", "snapshot.pt", "train.py"]
    assert begin.said[0].startswith("No trial has a link to `.git`, `checkpoints` of ")
    assert "with links to 5 names of " in begin.said[1]


def test_a_run_elsewhere_leaves_a_folder_called_checkpoints_linked(begin, tmp_path):
    assert "checkpoints" in begin(checkpoint=str(tmp_path / "runs/R")).linked


def test_a_run_at_the_top_and_links_to_what_holds_it_are_not_linked(begin, start, tmp_path):
    (tmp_path / "scratch").mkdir()
    (start / "runs").symlink_to(tmp_path / "scratch")
    (start / "loop").symlink_to("loop")
    folders = begin(checkpoint="./R")
    assert {"R", "runs"} & {*folders.names} == {"runs"}
    assert "loop" in folders.names
    assert "runs" not in begin(checkpoint="runs/R").names


def test_files_to_which_the_job_writes_are_not_linked(begin, start):
    with (start / "slurm-1.out").open("w") as file:
        saved = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            (start / "search.log").touch()
            folders = begin("--log-file", "search.log")
        finally:
            os.dup2(saved, 1)
            os.close(saved)
    assert not {"slurm-1.out", "search.log"} & {*folders.names}


def test_a_folder_with_too_many_names_is_refused_with_both_remedies(begin, start):
    for number in range(MOST_NAMES - 4):
        (start / f"{number}.txt").touch()
    sentence = refused(begin, checkpoint="A")
    assert "`--command-folder here`" in sentence
    assert "`--command-folder empty`" in sentence
    assert "Received: 1,001 in" in sentence
    assert len(begin("--command-own", "0.txt", checkpoint="B").linked) == MOST_NAMES
    assert begin("--command-folder", "empty", checkpoint="C").linked == []
    assert begin("--command-folder", "here", checkpoint="D").linked == []


def test_names_that_are_no_text_are_kept(begin, start):
    (start / os.fsdecode(b"\xff\xfe")).touch()
    first = begin()
    assert os.fsdecode(b"\xff\xfe") in first.linked
    assert begin("--opt-restore") == first


def test_a_search_that_starts_in_its_run_is_refused(begin):
    assert "in the run itself" in refused(begin, checkpoint="../project")


def test_a_name_that_is_not_there_is_said_with_a_close_one(begin):
    assert begin("--command-own", "snapshot.tp").own == ["snapshot.tp"]
    assert any("no such name" in line and "Did you mean `snapshot.pt`?" in line for line in begin.said)


def test_names_are_those_of_the_first_start(begin, start):
    first = begin()
    (start / "later").touch()
    (start / "data").rmdir()
    again = begin("--opt-restore")
    assert again == first
    assert f"`data` is no longer in `{start}`: no trial has a link to it." in begin.said


def test_more_names_may_become_each_trials_own_and_stay_so(begin):
    begin()
    assert "snapshot.pt" not in begin("--opt-restore", "--command-own", "snapshot.pt").linked
    assert begin("--opt-restore", "--command-own", "data").own == ["snapshot.pt", "data"]
    assert begin("--opt-restore").own == ["snapshot.pt", "data"]


def test_a_run_resumed_in_another_folder_links_its_names_there(begin, start, tmp_path, monkeypatch):
    first = begin()
    other = tmp_path / "other"
    other.mkdir()
    (other / "train.py").touch()
    (other / "data").mkdir()
    monkeypatch.chdir(other)
    again = begin("--opt-restore", checkpoint=str(start / "checkpoints/R"))
    assert (again.names, again.start) == (first.names, str(other))
    assert any("`.env`, `.venv`, `snapshot.pt` are no longer in" in line for line in begin.said)


@pytest.mark.parametrize("kind", ["here", "empty", "links"])
def test_the_kind_of_folder_is_that_of_the_run(begin, kind):
    begin("--command-folder", kind)
    assert begin("--opt-restore").kind == kind
    assert begin("--opt-restore", "--command-folder", kind).kind == kind
    other = "empty" if kind == "here" else "here"
    assert f"`--command-folder` differs: it was {kind}, now {other}" in refused(
        begin, "--opt-restore", "--command-folder", other
    )


def test_a_run_from_before_there_were_folders_stays_in_the_starting_folder(begin, start):
    begin(settings={"folder": str(start)})
    assert begin("--opt-restore", settings={}).kind == "here"
    assert f"All scripts start in `{start}`" in begin.said[-1]
    assert "it was here, now links" in refused(begin, "--opt-restore", "--command-folder", "links")
    assert "whose trials all start in one folder" in refused(begin, "--opt-restore", "--command-own", "data")


def test_links_of_a_killed_attempt_go_and_what_it_wrote_is_said(begin, start):
    begin()
    run = Path("checkpoints/R")
    options = driver_options("OptimizationDriver", ["--command", "true {args}", "--checkpoint", "R", "--opt-restore"])
    with closing(open_run(options.run, "R")) as directory:
        assigned = {"fold": 0, "attempt": 1, "block": 1, "team": 0, "n_ranks": 1}
        for trial in (0, 1):
            suggested = ev.TrialSuggested(time_s=1.0, trial=trial, point={})
            directory.journal.append(
                [suggested, ev.FoldAssigned(time_s=1.0, assignment=trial, trial=trial, **assigned)]
            )
            files = run / f"trials/000{trial}/files"
            files.mkdir(parents=True)
            (files / "snapshot.pt").symlink_to(start / "snapshot.pt")
    (run / "trials/0001/files/state").touch()
    begin("--opt-restore")
    assert [path.name for path in run.glob("trials/*/files/*")] == ["state"]
    assert begin.said[-1].startswith("Trial 1: the next attempt finds the files that the script had written")
