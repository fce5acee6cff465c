from pathlib import Path

import pytest

from nnlo_opt.data.lists import read_list, write_list
from nnlo_opt.errors import ConfigurationError


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
    with pytest.raises(ConfigurationError, match=said) as caught:
        read_list(path)
    assert str(path) in str(caught.value)


def test_a_list_that_is_not_there_or_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="must exist"):
        read_list(tmp_path / "none.list")
    with pytest.raises(ConfigurationError, match="must be readable"):
        read_list(tmp_path)
