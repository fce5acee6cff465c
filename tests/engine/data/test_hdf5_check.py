"""The process that reads HDF5 files first."""

import zlib
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest

import nnlo_opt
from nnlo_opt.app.run.workload import hdf5_check
from nnlo_opt.app.run.workload.hdf5_check import check_files
from tests.helpers.refusals import refusal

refused = partial(refusal, check_files, external=False)


@pytest.fixture
def sound(tmp_path: Path) -> Path:
    path = tmp_path / "sound.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.ones((300, 2)), chunks=(7, 2), compression="gzip")
        v = file.create_dataset("v", (300,), h5py.vlen_dtype(np.float32))
        for number in range(300):
            v[number] = np.ones(number % 5)
        file["y"], file["name"] = np.arange(300), ["a"] * 300
        file.attrs["layer_names"] = [b"x"]
    return path


def crashing(path: Path) -> Path:
    """Write a file with a chunk that is shorter than it should be, behind which libhdf5 reads 256 MB."""
    with h5py.File(path, "w") as file:
        x = file.create_dataset("x", (1000, 32000), "f8", chunks=(1000, 32000), compression="gzip")
        x.id.write_direct_chunk((0, 0), zlib.compress(b"short"))
        file["y"] = np.zeros(1000)
        file["layer/x"], file.attrs["layer_names"], file["layer"].attrs["weight_names"] = x, [b"layer"], [b"x"]
    return path


def endless(path: Path) -> Path:
    """Write a file whose groups have 2^40 paths."""
    with h5py.File(path, "w") as file:
        inner = file.create_group("last")
        inner["z"] = file["y"] = np.zeros(3)
        for number in range(40):
            group = file.create_group(f"g{number}")
            group["a"] = group["b"] = inner
            inner = group
        file["x"] = inner
    return path


def test_sound_files_and_foreign_errors_pass(sound: Path, tmp_path: Path) -> None:
    (tmp_path / "no.h5").write_bytes(b"no HDF5")
    files = [sound, str(sound), tmp_path / "no.h5", tmp_path / "missing.h5", tmp_path / "\udcff.h5"]
    check_files(files, ("x,v", "y", "name", None), [sound, tmp_path / "missing.h5"], external=False)
    check_files(files, ("x,none", "y", "none"), external=True)
    check_files((), ("x", "y"), external=False)


def test_a_file_that_crashes_libhdf5_is_named(sound: Path, tmp_path: Path) -> None:
    path = crashing(tmp_path / "crashing.h5")
    refused([sound, path, sound], ("x", "y"), says=[f"{path}; reading it ends the process (Segmentation fault)"])


def test_weights_for_a_manager_that_crash_libhdf5_are_named(tmp_path: Path) -> None:
    path = crashing(tmp_path / "crashing.h5")
    refusal(nnlo_opt.ModelFromJson, json_str="{}", weights=path, says=[f"{path}; reading it ends the process"])


def test_a_file_that_keeps_its_reader_is_named(sound: Path, tmp_path: Path) -> None:
    path = endless(tmp_path / "endless.h5")
    refused([sound, path], ("x", "y"), says=[f"{path}; reading it does not end"])


def test_data_that_are_not_finite_are_refused(sound: Path, tmp_path: Path) -> None:
    path = tmp_path / "nan.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = np.ones((300, 2)), np.full(300, np.inf)
    check_files([sound, path], ("x", "y"), external=False, finite=["features"])
    finite = ["features", "labels"]
    refused([sound, path], ("x", "y"), finite=finite, says=[f"'y' of {path}, first in sample 0"])


def test_a_check_that_cannot_be_made_refuses_nothing(sound: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5_check, "module_command", lambda module: ["sh", "-c", "cat > /dev/null; exit 3"])
    check_files([sound], ("x", "y"), external=False)
