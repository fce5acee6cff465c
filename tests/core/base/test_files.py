import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest

from nnlo_opt.core.base import files
from tests.helpers.crash_states import recording


class Interrupted(BaseException):
    """As a KeyboardInterrupt: not an Exception."""


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("data", ["text with ä", b"bytes\0", ""])
def test_a_file_is_written_as_a_whole_and_nothing_else_stays(tmp_path, data, durable):
    files.atomic_write(tmp_path / "a.json", data, durable=durable)
    assert (tmp_path / "a.json").read_bytes() == (data.encode() if isinstance(data, str) else data)
    assert names_in(tmp_path) == ["a.json"]


@pytest.mark.parametrize(
    ("durable", "steps"),
    [(True, ["create", "write", "sync", "rename", "sync ."]), (False, ["create", "write", "rename"])],
)
def test_content_is_on_the_disk_before_its_name_and_the_name_when_the_write_returns(tmp_path, durable, steps):
    with recording(tmp_path) as made:
        files.atomic_write(tmp_path / "a", b"new", durable=durable)
    assert [f"{step.kind} ." if step.path == "." else step.kind for step in made] == steps


def test_a_file_that_exists_is_replaced_and_not_written_into(tmp_path):
    path = tmp_path / "a"
    files.atomic_write(path, "old and longer")
    with path.open() as reader:
        files.atomic_write(path, "new")
        assert reader.read() == "old and longer"
    assert path.read_text() == "new"


def test_other_users_may_read_files_as_the_umask_says(tmp_path):
    mask = os.umask(0o027)
    try:
        files.atomic_write(tmp_path / "a", "x")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_a_write_into_a_folder_that_is_not_there_fails_and_leaves_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        files.atomic_write(tmp_path / "missing" / "a", "x")
    assert names_in(tmp_path) == []


def test_a_write_over_a_folder_fails_and_leaves_nothing_else(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(OSError, match="directory"):
        files.atomic_write(tmp_path / "a", "x")
    assert names_in(tmp_path) == ["a"]


def test_a_temporary_path_keeps_its_suffix_for_writers_that_go_by_it(tmp_path):
    with files.atomic_path(tmp_path / "w.npz") as path:
        assert path.suffix == ".npz"
        assert path.parent == tmp_path
        np.savez(path, a=np.arange(3))
        assert not (tmp_path / "w.npz").exists()
    assert names_in(tmp_path) == ["w.npz"]
    with np.load(tmp_path / "w.npz") as archive:
        assert list(archive["a"]) == [0, 1, 2]


@pytest.mark.parametrize("error", [ValueError, Interrupted])
def test_a_block_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, error):
    files.atomic_write(tmp_path / "a.txt", "old")

    def write():
        with files.atomic_path(tmp_path / "a.txt") as path:
            path.write_text("half of the n")
            raise error

    with pytest.raises(error):
        write()
    assert names_in(tmp_path) == ["a.txt"]
    assert (tmp_path / "a.txt").read_text() == "old"


def test_a_block_that_writes_nothing_is_an_error_and_leaves_the_old_file(tmp_path):
    files.atomic_write(tmp_path / "a.txt", "old")
    with pytest.raises(FileNotFoundError), files.atomic_path(tmp_path / "a.txt"):
        pass
    assert (tmp_path / "a.txt").read_text() == "old"


def test_all_bytes_are_written_however_short_each_write_is(tmp_path, monkeypatch):
    data, write = bytes(range(256)), os.write
    monkeypatch.setattr(files.os, "write", lambda fd, rest: write(fd, rest[:100]))
    with open(tmp_path / "a", "wb") as file:
        files.write_fully(file.fileno(), b"")
        files.write_fully(file.fileno(), data)
        assert (tmp_path / "a").read_bytes() == data
        monkeypatch.setattr(files.os, "write", lambda fd, rest: 0)
        with pytest.raises(OSError, match="is the disk full"):
            files.write_fully(file.fileno(), data)


def test_a_full_disk_is_an_error():
    with open("/dev/full", "wb") as file, pytest.raises(OSError, match="space"):
        files.write_fully(file.fileno(), b"x")


def test_a_folder_can_be_synced(tmp_path):
    files.sync(tmp_path)
    with pytest.raises(FileNotFoundError):
        files.sync(tmp_path / "missing")


def test_a_folder_is_made_with_all_above_it_each_synced_into_the_one_above(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr("nnlo_opt.core.base.files.sync", synced.append)
    files.make_directory(tmp_path / "a" / "b" / "c")
    assert (tmp_path / "a/b/c").is_dir()
    assert synced == [tmp_path, tmp_path / "a", tmp_path / "a/b"]
    files.make_directory(tmp_path / "a" / "b")
    assert len(synced) == 3


def test_a_file_where_a_folder_is_to_be_is_an_error_and_stays(tmp_path):
    (tmp_path / "a").write_text("mine")
    for path in (tmp_path / "a", tmp_path / "a" / "b"):
        with pytest.raises(OSError, match=r"exists|Not a directory"):
            files.make_directory(path)
    assert (tmp_path / "a").read_text() == "mine"


def test_what_has_a_checksum_comes_back_and_shows_every_damage():
    data = {"a": [1, 2.5, None], "b": "\u00e9"}
    text = files.with_checksum(data)
    assert files.without_checksum(text) == data
    damages = {text[:i] + other + text[i + 1 :] for i in range(len(text) - 1) for other in "0x"} - {text}
    for damaged in damages:
        with pytest.raises(ValueError, match=r"."):
            files.without_checksum(damaged)


@pytest.mark.parametrize("name", ["a" * 255, "ä" * 120 + ".json", "a" + ".b" * 127, "x." + "y" * 253])
def test_a_name_may_be_as_long_as_any_name(tmp_path, name):
    files.atomic_write(tmp_path / name, "x")
    assert names_in(tmp_path) == [name]


def test_a_name_that_is_too_long_is_cut_with_its_hash_and_any_other_stays():
    assert files.short_name("model_train", "_history.json") == "model_train_history.json"
    assert files.short_name("a/b\0\ud800\udc80", ".x") == "a_b__\udc80.x"  # the last stands for a byte that is no UTF-8
    assert files.short_name("a" * 253, ".x") == "a" * 253 + ".x"
    for stem in ("a" * 254, "ä" * 127, "ä" * 1000):
        name = files.short_name(stem, ".x")
        assert 250 < len(name.encode()) <= 255
        assert name.startswith(stem[:100])
        assert name.endswith(".x")
        assert name != files.short_name(stem + "b", ".x")


def test_what_open_may_wait_for_is_refused_before_it_is_opened(tmp_path, irregular):
    with pytest.raises(OSError, match="not a regular file"):
        files.regular(irregular(tmp_path / "a"))
    with pytest.raises(FileNotFoundError):
        files.regular(tmp_path / "missing")
    for path in (tmp_path, Path(__file__)):
        assert files.regular(path) == path


def nested(depth, inside="1"):
    return "[" * depth + inside + "]" * depth


@pytest.mark.parametrize(
    "text",
    [nested(101), nested(900), "[" * 100_000, '{"a":' * 500 + "1" + "}" * 500, "[", b"\xff"],
    ids=lambda text: str(text[:9]),
)
def test_json_that_is_none_or_nested_beyond_all_use_is_a_value_error(text):
    with pytest.raises(ValueError, match=r"."):
        files.parse_json(text)
    with pytest.raises(ValueError, match=r"."):
        files.without_checksum(text)


def test_json_is_read_as_it_stands():
    assert files.parse_json(nested(100)) == json.loads(nested(100))
    assert files.parse_json(b'{"a": [1, {"b": null}], "c": 2.5}') == {"a": [1, {"b": None}], "c": 2.5}
    assert files.parse_json("1.5", parse_float=str) == "1.5"


def test_what_an_earlier_version_wrote_without_a_checksum_is_read_if_it_has_the_same_names():
    assert files.without_checksum('{"a": 1, "b": 2}', {"a", "b"}) == {"a": 1, "b": 2}
    for text, names in (('{"a": 1}', {"a", "b"}), ('{"a": 1, "c": 2}', {"a", "b"}), ("{}", None), ("[]", {"a"})):
        with pytest.raises(ValueError, match=r"."):
            files.without_checksum(text, names)
