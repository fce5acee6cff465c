import re
import subprocess
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.data.lists import sums_path, verify, write_list, write_sums
from nnlo_opt.errors import ConfigurationError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A list of two files, one of them elsewhere, with their checksums."""
    return written(tmp_path / "lists")


def written(folder: Path) -> Path:
    folder.mkdir()
    files = [folder / "a.h5", folder.parent / "b c.h5"]
    for file in files:
        file.write_bytes(file.name.encode() * 100)
    write_list(folder / "train.list", files)
    write_sums(folder / "train.list", files)
    return folder / "train.list"


def test_files_that_are_what_they_were_are_counted(path: Path) -> None:
    assert verify(path) == 2


def test_the_checksums_are_those_of_sha256sum(path: Path) -> None:
    command = ["sha256sum", "--check", "--strict", sums_path(path).name]
    done = subprocess.run(command, check=False, cwd=path.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": OK") == 2


def refusal(path: Path) -> str:
    """The sentence with which this list is refused; empty where it is not."""
    try:
        verify(path)
    except ConfigurationError as error:
        return str(error)
    return ""


def test_a_file_that_changed_is_named(path: Path) -> None:
    file = path.parent.parent / "b c.h5"
    data = bytearray(file.read_bytes())
    data[17] ^= 1
    file.write_bytes(data)
    assert f"Received: {file}, whose SHA-256 is not" in refusal(path)


def test_a_list_that_names_other_files_than_its_checksums_is_refused(path: Path) -> None:
    lines = path.read_text().splitlines(keepends=True)
    path.write_text(lines[0])
    assert "b c.h5` in one of them only" in refusal(path)
    path.write_text("".join([*lines, lines[0]]))
    assert "a file more than once" in refusal(path)
    (path.parent / "new.h5").touch()
    path.write_text("".join([*lines, "new.h5\n"]))
    assert "new.h5` in one of them only" in refusal(path)


def test_checksums_that_are_not_there_or_are_none_are_said(path: Path) -> None:
    sums = sums_path(path)
    text = sums.read_text()
    for wrong in ("hello\n", text + "\n", text + text, text[3:], text.upper()):
        sums.write_text(wrong)
        assert re.fullmatch(r".*one line for each data file.*Received: line \d of .*Write it while.*", refusal(path))
    sums.write_bytes(b"\xff\xfe")
    assert "must be readable text" in refusal(path)
    sums.unlink()
    assert re.fullmatch(r".*without train\.list\.sha256.*sha256sum.*", refusal(path))


@given(where=st.integers(0, 10**6), bit=st.integers(0, 7), which=st.sampled_from(["list", "sums", "data"]))
@settings(max_examples=examples(100), deadline=None)
def test_a_flipped_bit_in_any_of_the_files_is_refused_or_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, where: int, bit: int, which: str
) -> None:
    path = written(tmp_path_factory.mktemp("sums") / "lists")
    target = {"list": path, "sums": sums_path(path), "data": path.parent / "a.h5"}[which]
    data = bytearray(target.read_bytes())
    data[where % len(data)] ^= 1 << bit
    target.write_bytes(data)
    # In a list, a line break of another kind, such as a vertical tab, separates lines as well.
    assert refusal(path) or (which != "data" and verify(path) == 2)
