import io
import json
import shutil
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from nnlo_opt.core.base.errors import CheckpointError
from nnlo_opt.core.base.files import with_checksum
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials import checkpoint, manifest
from nnlo_opt.core.trials.checkpoint import Checkpoint
from tests.helpers.crash_states import get, put, recording, states

FILES = ["master.npz", "master.json", "worker-1.json", "worker-12.json", "manifest.json"]


# The tests write, count and damage files by plain paths.


def save(directory, *arguments):
    return Path(str(checkpoint.save(SafePath(directory), *arguments)))


def load(place):
    return checkpoint.load(SafePath(place))


def load_latest(directory):
    return checkpoint.load_latest(SafePath(directory))


def save_weights(directory, *vectors):
    checkpoint.save_weights(SafePath(directory), *vectors)


def load_weights(directory):
    return checkpoint.load_weights(SafePath(directory))


def fold_directory(*place):
    return Path(str(checkpoint.fold_directory(*place)))


def checkpoint_of(epoch, n_weights=50):
    rng = np.random.default_rng(epoch)
    return Checkpoint(
        epoch=epoch,
        arrays={
            "central": rng.normal(size=n_weights).astype(np.float32),
            "best": rng.normal(size=n_weights).astype(np.float32),
            "optimizer.velocity": rng.normal(size=n_weights).astype(np.float32),
            "empty": np.empty(0, np.float32),
        },
        master={"version": 10 * epoch, "history": {"epochs": [{"loss": 0.1}] * epoch}, "train_s": 1.5},
        workers={1: {"pass": epoch, "offset": 0, "discrete": [[3, 4]]}, 12: {"pass": epoch, "offset": 5}},
    )


def agree(left, right):
    return (
        left is not None
        and (left.epoch, left.master, left.workers) == (right.epoch, right.master, right.workers)
        and left.arrays.keys() == right.arrays.keys()
        and all(
            left.arrays[name].dtype == array.dtype and np.array_equal(left.arrays[name], array)
            for name, array in right.arrays.items()
        )
    )


def two_checkpoints(directory):
    """Checkpoints of epochs 2 and 10, both in place; the newer is not the last by name."""
    save(directory, checkpoint_of(2))
    shutil.copytree(directory / "checkpoint-2", directory.with_name("kept"), dirs_exist_ok=True)
    save(directory, checkpoint_of(10))
    shutil.copytree(directory.with_name("kept"), directory / "checkpoint-2")
    return directory / "checkpoint-10"


def test_a_checkpoint_comes_back_as_it_was(tmp_path):
    place = save(tmp_path / "not" / "there" / "yet", checkpoint_of(3))
    assert sorted(path.name for path in place.iterdir()) == sorted(FILES)
    assert agree(load(place), checkpoint_of(3))
    assert agree(load_latest(place.parent), checkpoint_of(3))


def test_without_a_checkpoint_there_is_none(tmp_path):
    assert load_latest(tmp_path) is None
    assert load_latest(tmp_path / "missing") is None


def test_a_new_checkpoint_removes_the_older_ones_and_leaves_nothing_else(tmp_path):
    for epoch in (1, 2, 9, 10):
        save(tmp_path, checkpoint_of(epoch))
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-10"]


def test_the_newest_is_the_one_of_the_highest_epoch(tmp_path):
    two_checkpoints(tmp_path / "fold0")
    assert load_latest(tmp_path / "fold0").epoch == 10


def test_a_checkpoint_of_the_same_epoch_is_replaced(tmp_path):
    save(tmp_path, checkpoint_of(2, n_weights=5))
    save(tmp_path, checkpoint_of(2))
    assert agree(load_latest(tmp_path), checkpoint_of(2))


# ---------------------------------------------------------------- damage


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("instead", ["nothing", "a folder", "a file of another checkpoint"])
def test_a_checkpoint_with_any_file_missing_or_another_is_passed_over_for_the_one_before(tmp_path, name, instead):
    place = two_checkpoints(tmp_path / "fold0")
    (place / name).unlink()
    if instead == "a folder":
        (place / name).mkdir()
    elif instead == "a file of another checkpoint":
        shutil.copy(place.parent / "checkpoint-2" / name, place / name)
    with pytest.raises(CheckpointError):
        load(place)
    assert agree(load_latest(place.parent), checkpoint_of(2))


def test_a_file_the_manifest_does_not_name_is_no_part_of_the_checkpoint(tmp_path):
    place = save(tmp_path, checkpoint_of(3))
    (place / "worker-7.json").write_text(json.dumps({"pass": 1, "offset": 0}))
    assert agree(load(place), checkpoint_of(3))


def test_all_checkpoints_damaged_is_as_good_as_none(tmp_path):
    place = two_checkpoints(tmp_path / "fold0")
    for path in place.parent.iterdir():
        (path / "manifest.json").unlink()
    assert load_latest(place.parent) is None


def test_what_is_not_called_a_checkpoint_is_left_alone(tmp_path):
    others = ["checkpoint-x", "checkpoint-", "checkpoint-3.old", "my-checkpoint-3"]
    for name in others:
        (tmp_path / name).mkdir()
    (tmp_path / "weights.npz").write_bytes(b"x")
    assert load_latest(tmp_path) is None
    manifest.remove_all(SafePath(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {*others, "weights.npz"}


def test_a_write_that_fails_leaves_the_older_checkpoint_and_no_rubbish(tmp_path):
    save(tmp_path, checkpoint_of(2))
    broken = Checkpoint(epoch=3, arrays=checkpoint_of(3).arrays, master={"version": object()}, workers={})
    with pytest.raises(TypeError):
        save(tmp_path, broken)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]
    assert agree(load_latest(tmp_path), checkpoint_of(2))


@pytest.mark.parametrize("n_files", range(len(FILES)))
def test_a_crash_while_writing_leaves_the_older_checkpoint(tmp_path, n_files):
    place = two_checkpoints(tmp_path / "fold0")
    half = place.with_name(".checkpoint-11.0123456789ab")
    half.mkdir()
    for name in FILES[:n_files]:
        shutil.copy(place / name, half / name)
    assert agree(load_latest(place.parent), checkpoint_of(10))
    manifest.remove_all(SafePath(place.parent))
    assert list(place.parent.iterdir()) == []


def test_nothing_is_removed_where_there_is_nothing(tmp_path):
    manifest.remove_all(SafePath(tmp_path / "missing"))
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------- weights


def test_weights_of_a_finished_fold_come_back_as_they_were(tmp_path):
    directory = fold_directory(tmp_path, 7, 2)
    assert directory == tmp_path / "trials" / "0007" / "fold2"
    weights, state = np.arange(5, dtype=np.float32), np.empty(0, np.float32)
    save_weights(directory, weights, state)
    for saved, loaded in zip((weights, state), load_weights(directory), strict=True):
        assert loaded.dtype == np.float32
        assert np.array_equal(saved, loaded)
    assert [path.name for path in directory.iterdir()] == ["weights.npz"]


def test_weights_of_a_fold_that_was_interrupted_are_the_best_of_its_last_checkpoint(tmp_path):
    two_checkpoints(tmp_path / "fold0")
    weights, state = load_weights(tmp_path / "fold0")
    assert np.array_equal(weights, checkpoint_of(10).arrays["best"])
    assert not len(state)


def test_weights_that_are_missing_are_a_checkpoint_error(tmp_path):
    with pytest.raises(CheckpointError, match=r"weights\.npz"):
        load_weights(tmp_path)


def test_a_crash_while_a_checkpoint_of_the_same_epoch_is_written_again_leaves_one_of_them(tmp_path, caplog):
    live = tmp_path / "live"
    save(live, checkpoint_of(3))
    before = get(live)
    with recording(live) as steps:
        save(live, checkpoint_of(3).replaced(master={"version": 99}))
        save(live, checkpoint_of(3).replaced(master={"version": 100}))
    seen = set()
    for n, (_, _, state) in enumerate(states(steps, before)):
        put(state, tmp_path / str(n))
        seen.add(load_latest(tmp_path / str(n)).master["version"])
    assert seen == {30, 99, 100}
    assert not caplog.text


@pytest.mark.parametrize(
    "wrong",
    [{"epoch": -5}, {"epoch": 1e30}, {"n_samples_inside": -1}, {"train_s": float("nan")}, {"n_samples": "3"}],
    ids=repr,
)
def test_a_checkpoint_with_a_value_that_no_training_has_is_skipped(tmp_path, caplog, wrong):
    save(tmp_path, checkpoint_of(3).replaced(master={"version": 1} | wrong))
    assert load_latest(tmp_path) is None
    assert "cannot be read" in caplog.text


# ---------------------------------------------------------------- the manifest


def manifest_of(place):
    return json.loads((place / "manifest.json").read_text())


def write_first_version(place, files):
    (place / "manifest.json").write_text(json.dumps({"epoch": 3, "files": files}))


@pytest.mark.parametrize("has_checksum", [True, False])
def test_no_changed_character_of_the_manifest_drops_the_state_of_a_worker(tmp_path, has_checksum):
    states = {1: {"offset": 5}, 2: {"offset": 5}, 12: {"offset": 5}}
    temporary = manifest.begin(SafePath(tmp_path), 3)
    files = {}
    for worker in states:
        files |= checkpoint.save_state(temporary, worker, {"momentum": np.ones(3)})
    place = save(tmp_path, checkpoint_of(3).replaced(workers=states), temporary, files)
    if not has_checksum:
        write_first_version(place, manifest_of(place)["files"])
    whole = load(place)
    assert (whole.workers, whole.remembering) == (states, frozenset(states))
    text = (place / "manifest.json").read_text()
    for i, character in enumerate(text):
        if not (character.isdigit() or character in "wmjn.-"):
            continue
        for other in {"1", "2", "x"} - {character}:
            (place / "manifest.json").write_text(text[:i] + other + text[i + 1 :])
            with suppress(CheckpointError):
                found = load(place)
                assert (found.workers, found.remembering) == (whole.workers, whole.remembering)


def test_a_manifest_of_the_first_version_is_read_if_it_names_every_file(tmp_path):
    place = save(tmp_path, checkpoint_of(3))
    files = manifest_of(place)["files"]
    write_first_version(place, files)
    assert agree(load(place), checkpoint_of(3))
    write_first_version(place, {name: files[name] for name in files if name != "worker-12.json"})
    with pytest.raises(CheckpointError, match=r"without worker-12\.json"):
        load(place)


@pytest.mark.parametrize("name", ["/dev/zero", "../checkpoint-3/worker-1.json", "manifest.json", "worker-.npz"])
def test_a_manifest_names_files_of_a_checkpoint_alone(tmp_path, name):
    place = save(tmp_path, checkpoint_of(3))
    files = manifest_of(place)["files"]
    (place / "manifest.json").write_text(with_checksum({"files": {**files, name: files["worker-1.json"]}}))
    with pytest.raises(CheckpointError, match=r"which is not a file of a checkpoint"):
        load(place)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_no_regular_file_is_damage(tmp_path, name, irregular):
    place = two_checkpoints(tmp_path / "fold0")
    (place / name).unlink()
    irregular(place / name)
    assert agree(load_latest(place.parent), checkpoint_of(2))


# ---------------------------------------------------------------- arrays


def refused_weights(directory):
    with pytest.raises(CheckpointError, match=r"weights\.npz") as refused:
        load_weights(directory)
    assert "\n" not in str(refused.value)


def test_weights_that_the_directory_of_the_archive_makes_empty_are_refused(tmp_path):
    save_weights(tmp_path, np.arange(5, dtype=np.float32), np.empty(0, np.float32))
    data = bytearray((tmp_path / "weights.npz").read_bytes())
    entry = data.index(b"PK\x01\x02")
    data[entry + 16 : entry + 28] = bytes(12)  # its checksum and both sizes
    (tmp_path / "weights.npz").write_bytes(data)
    refused_weights(tmp_path)


@pytest.mark.parametrize(
    "arrays",
    [
        {"weights": np.ones(3, np.float32)},
        {"weights": np.ones(3), "state": np.ones(1, np.float32)},
        {"weights": np.ones((3, 1), np.float32), "state": np.ones(1, np.float32)},
        {"weights": np.float32(3), "state": np.ones(1, np.float32)},
        {"weights": np.array(["a"]), "state": np.ones(1, np.float32)},
        {"weights": np.ones(3, np.float32), "state": np.ones(1, np.float32), "more": np.ones(1, np.float32)},
    ],
)
def test_weights_are_two_vectors_of_float32_or_refused(tmp_path, arrays):
    np.savez(tmp_path / "weights.npz", **arrays)
    refused_weights(tmp_path)


@pytest.mark.parametrize(
    ("kind", "shape", "data"),
    [
        ("<f4", (2**50,), b"1234"),
        ("<f4", (1,), b"12345678"),
        ("<f4", (-1, -2), b"12345678"),
        ("<U0", (2**60,), b""),
        ("|O", (1,), b"12345678"),
    ],
)
def test_an_array_that_is_not_as_long_as_its_header_says_is_refused(tmp_path, kind, shape, data):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": kind, "fortran_order": False, "shape": shape})
    with zipfile.ZipFile(tmp_path / "weights.npz", "w") as archive:
        for name in ("weights", "state"):
            archive.writestr(f"{name}.npy", header.getvalue() + data)
    refused_weights(tmp_path)


def test_the_state_of_an_update_rule_comes_back_as_it_was(tmp_path):
    state = {"name": "sgd", "n_steps": 3, "rate": 0.1, "on": True, "slot": np.arange(4.0), "moved": np.ones((2, 3))}
    checkpoint.save_state(SafePath(tmp_path), 1, state)
    found = checkpoint.load_state(SafePath(tmp_path), 1)
    assert {name: np.asarray(value).tolist() for name, value in found.items()} == {
        name: np.asarray(value).tolist() for name, value in state.items()
    }


@pytest.mark.parametrize("arrays", [{"best": np.ones(3)}, {"central": np.ones(4), "best": np.ones(3)}], ids=len)
def test_a_checkpoint_without_weights_or_with_other_best_weights_is_damage(tmp_path, arrays):
    place = save(tmp_path, checkpoint_of(3).replaced(arrays=arrays))
    with pytest.raises(CheckpointError):
        load(place)
