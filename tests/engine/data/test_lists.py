import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.engine.data.lists import read_list, sums_path, verify, write_list, write_sums
from tests.helpers.effort import examples
from tests.helpers.refusals import refusal


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "a.h5", tmp_path / "sub folder" / "b #1.h5"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.touch()
    return paths


def test_names_are_relative_to_the_list(tmp_path: Path, files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("/")
    text = f"# training\n\n  a.h5  \r\n{files[1]}\n   # later: c.h5\nsub folder/b #1.h5"
    (tmp_path / "train.list").write_text(text, encoding="utf-8-sig")
    assert read_list(tmp_path / "train.list") == (files[0], files[1], files[1])


def test_written_lists_move_with_their_folder(tmp_path: Path, files: list[Path]) -> None:
    write_list(tmp_path / "x.list", files)
    assert (tmp_path / "x.list").read_text() == "a.h5\nsub folder/b #1.h5\n"
    assert read_list(str(tmp_path / "x.list")) == tuple(files)


def test_files_elsewhere_are_written_as_absolute_paths(tmp_path: Path, files: list[Path]) -> None:
    (tmp_path / "lists").mkdir()
    write_list(tmp_path / "lists" / "x.list", files)
    assert read_list(tmp_path / "lists" / "x.list") == tuple(files)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "at least one data file"),
        (b"# nothing\n\n", "at least one data file"),
        (b"a.h5\nb.h5\n", "b.h5 in line 2"),
        (b"a.h5\n.\n", "which is a folder"),
        (b"\x89HDF\r\n\x1a\n", "must be text"),
        (b"a.h5\0\n", "must be text"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, files: list[Path], content: bytes, said: str) -> None:
    path = tmp_path / "train.list"
    path.write_bytes(content)
    refusal(read_list, path, says=(said, str(path)))


def test_a_list_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    refusal(read_list, tmp_path / "none.list", says=["must exist"])
    refusal(read_list, tmp_path, says=["must be readable"])


def test_what_is_no_regular_file_is_no_list_and_no_data_file(tmp_path: Path, files: list[Path], irregular) -> None:
    refusal(read_list, irregular(tmp_path / "it"), says=["must be readable", "not a regular file"])
    (tmp_path / "train.list").write_text("a.h5\nit\n")
    refusal(read_list, tmp_path / "train.list", says=["it in line 2", "which is not a regular file"])


def test_a_table_given_as_a_list_is_refused_without_its_whole_line(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(",".join(map(str, range(10_000))) + "\n")
    sentence = refusal(read_list, tmp_path / "x.csv", says=["in line 1", "which does not exist"])
    assert len(sentence) < 1000


# ---------------------------------------------------------------- checksums


@pytest.fixture
def listed(tmp_path: Path) -> Path:
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


def test_files_that_are_what_they_were_are_counted(listed: Path) -> None:
    assert verify(listed) == 2


def test_the_checksums_are_those_of_sha256sum(listed: Path) -> None:
    command = ["sha256sum", "--check", "--strict", sums_path(listed).name]
    done = subprocess.run(command, check=False, cwd=listed.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(": OK") == 2


def test_a_file_that_changed_is_named(listed: Path) -> None:
    file = listed.parent.parent / "b c.h5"
    data = bytearray(file.read_bytes())
    data[17] ^= 1
    file.write_bytes(data)
    assert f"Received: {file}, whose SHA-256 is not" in refusal(verify, listed)


def test_a_list_that_names_other_files_than_its_checksums_is_refused(listed: Path) -> None:
    lines = listed.read_text().splitlines(keepends=True)
    listed.write_text(lines[0])
    refusal(verify, listed, says=["b c.h5` in one of them only"])
    listed.write_text("".join([*lines, lines[0]]))
    refusal(verify, listed, says=["a file more than once"])
    (listed.parent / "new.h5").touch()
    listed.write_text("".join([*lines, "new.h5\n"]))
    refusal(verify, listed, says=["new.h5` in one of them only"])


def test_checksums_that_are_not_there_or_are_none_are_said(listed: Path) -> None:
    sums = sums_path(listed)
    text = sums.read_text()
    rule = r".*one line for each data file.*Received: line \d of .*Write it while.*"
    for wrong in ("hello\n", text + "\n", text + text, text[3:], text.upper()):
        sums.write_text(wrong)
        assert re.fullmatch(rule, refusal(verify, listed))
    sums.write_bytes(b"\xff\xfe")
    refusal(verify, listed, says=["A file of checksums must be text"])
    sums.unlink()
    assert re.fullmatch(r".*without train\.list\.sha256.*sha256sum.*", refusal(verify, listed))


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
    try:
        n_files = verify(path)
    except ConfigurationError:
        return
    # In a list, a line break of another kind, such as a vertical tab, separates lines as well.
    assert which != "data"
    assert n_files == 2
