"""Path on which no link is followed."""

import os
import sys

import pytest

from nnlo_opt.core.base.files import atomic_write, make_directory
from nnlo_opt.core.base.safe_path import SafePath


@pytest.fixture
def outside(tmp_path):
    """Folder of a user, with a file, beside the run."""
    folder = tmp_path / "home"
    folder.mkdir()
    (folder / "file").write_bytes(b"precious")
    return folder


@pytest.fixture
def run(tmp_path):
    """Run directory that is reached through a link."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").symlink_to(tmp_path / "disk")
    return SafePath(tmp_path / "run")


CALLS = {
    "read": lambda path: path.read_bytes(),
    "write": lambda path: path.write_bytes(b"new"),
    "append": lambda path: path.open("ab").close(),
    "touch": lambda path: path.touch(),
    "mkdir": lambda path: path.mkdir(),
    "unlink": lambda path: path.unlink(missing_ok=True),
    "remove": lambda path: path.remove(),
    "replace": lambda path: path.replace(path.with_name("other")),
    "link": lambda path: path.with_name("other").hardlink_to(path),
    "write whole": lambda path: atomic_write(path, b"new"),
    "make folders": lambda path: make_directory(path / "below"),
    "sync": lambda path: path.sync(),
    "list": lambda path: path.iterdir(),
    "copy": lambda path: path.copy(path.with_name("other")),
    "stat": lambda path: path.stat(),
}


def content(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("call", CALLS.values(), ids=[*CALLS])
@pytest.mark.parametrize("inside", ["file", "new"])
def test_a_link_to_a_folder_is_not_followed(run, outside, call, inside):
    os.symlink(outside, run.root / "trials")
    with pytest.raises(OSError, match="no link in a run is followed"):
        call(run / "trials" / inside)
    assert content(outside) == {outside / "file": b"precious"}


@pytest.mark.parametrize("name", ["read", "write", "append", "mkdir", "make folders", "sync", "list", "copy"])
def test_a_link_in_the_place_of_a_file_is_not_followed(run, outside, name):
    os.symlink(outside / "file", run.root / "note")
    with pytest.raises(OSError, match=r"no link in a run is followed|File exists"):
        CALLS[name](run / "note")
    assert content(outside) == {outside / "file": b"precious"}


@pytest.mark.parametrize("name", ["unlink", "remove", "write whole", "replace"])
def test_a_link_is_removed_or_replaced_itself(run, outside, name):
    os.symlink(outside / "file", run.root / "note")
    CALLS[name](run / "note")
    assert not os.path.islink(run.root / "note")
    assert content(outside) == {outside / "file": b"precious"}


def test_another_name_of_a_file_is_that_file_and_a_link_is_not_followed_for_it(run, outside):
    (run / "note").write_bytes(b"text")
    (run / "other").hardlink_to(run / "note")
    assert os.path.samestat((run / "note").stat(), (run / "other").stat())
    with pytest.raises(FileExistsError):
        (run / "other").hardlink_to(run / "note")
    os.symlink(outside / "file", run.root / "link")
    (run / "third").hardlink_to(run / "link")
    assert os.path.islink(run.root / "third")
    assert content(outside) == {outside / "file": b"precious"}


def test_a_folder_is_removed_without_what_its_links_lead_to(run, outside):
    make_directory(run / "trials/0001")
    os.symlink(outside, run.root / "trials/0001/fold0")
    (run / "trials").remove()
    assert run.iterdir() == []
    assert content(outside) == {outside / "file": b"precious"}


def test_a_folder_that_is_swapped_for_a_link_within_a_call_is_still_the_same_folder(run, outside, monkeypatch):
    make_directory(run / "logs")
    opened = os.open

    def swap_then_open(path, *arguments, **keywords):
        if path == "rank.log":
            os.rename(run.root / "logs", run.root / "moved")
            os.symlink(outside, run.root / "logs")
        return opened(path, *arguments, **keywords)

    monkeypatch.setattr(os, "open", swap_then_open)
    (run / "logs/rank.log").write_bytes(b"text")
    assert (run.root / "moved/rank.log").read_bytes() == b"text"
    assert content(outside) == {outside / "file": b"precious"}


@pytest.mark.parametrize("name", ["../home/file", "/etc/passwd", "trials/../../home/file"])
def test_no_name_leads_out_of_the_folder(run, name):
    with pytest.raises(OSError, match="leads out"):
        run / name


def test_what_is_no_regular_file_is_refused_without_waiting(run):
    os.mkfifo(run.root / "note")
    for mode in ("rb", "ab", "wb"):
        with pytest.raises(OSError, match=r"not a regular file|No such device"):
            (run / "note").open(mode)


def test_a_file_larger_than_a_note_is_not_read(run):
    with open(run.root / "note", "wb") as file:
        os.truncate(file.fileno(), 2**42)
    with pytest.raises(OSError, match="more than"):
        (run / "note").read_bytes()


def test_patterns_find_what_is_there_in_order_and_nothing_behind_a_link(run, outside):
    for fold in (1, 0):
        make_directory(run / f"trials/fold{fold}")
        (run / f"trials/fold{fold}/weights").write_bytes(b"")
    os.symlink(outside, run.root / "trials/fold2")
    assert [str(path) for path in (run / "trials").glob("fold*/*")] == [
        str(run / f"trials/fold{fold}/weights") for fold in (0, 1)
    ]
    assert (run / "nowhere").glob("*") == (run / "trials/fold2").glob("*") == []


#: more folders within each other than Python functions can call each other here
DEEP = 400


@pytest.fixture
def deep(run):
    """Folders nested so deeply that a file is at the end of each 100th."""
    place = run.root / "save"
    for level in range(DEEP):
        place = place / "d"
        if level % 100 == 99:
            place.mkdir(parents=True)
            (place / "f").write_bytes(b"123")
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(DEEP)
    yield run / "save"
    sys.setrecursionlimit(before)


def test_folders_nested_deeply_are_walked_and_removed(run, deep):
    assert sum(path.name == "f" for path in deep.walk()) == DEEP // 100
    deep.remove()
    assert not deep.exists()


def test_a_folder_in_which_one_may_not_write_is_removed_if_it_is_empty(run):
    make_directory(run / "save/a/b/c")
    (run.root / "save/a/b/c").chmod(0o555)
    (run / "save").remove()
    assert not (run / "save").exists()
