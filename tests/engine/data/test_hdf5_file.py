"""Files of somebody else: names, links, data sets and sizes that nobody would write."""

from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest

from nnlo_opt.core.base.errors import TrialError
from nnlo_opt.engine.data.hdf5.source import Hdf5Source
from tests.helpers.refusals import refusal

refused = partial(refusal, Hdf5Source)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = np.ones((3, 2)), np.arange(3)
    return path


def test_names_that_are_no_utf8_are_names(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file.create_group("g")[b"b\xff"] = np.full((3, 2), 5)
        file["g/a"] = np.zeros(3)
        file[b"\xfe"] = np.arange(3)
        file["soft"] = h5py.SoftLink("/g")
        file["texts"] = np.array([b"\xff", b"a", b"b"])
    for name in ("g", "soft", "g/a,g/b\udcff"):
        source = Hdf5Source([path], name, "\udcfe")
        assert source.info.feature_shape == [(), (2,)]
        assert source.read(np.array([1]))[0][1].tolist() == [[5, 5]]
    sentence = refused([path], "none", "y", says=[r"g/b\xff", r"\xfe"])
    assert sentence.encode()  # it can be printed
    refusal(source.read_column, "texts", says=["'texts'", "must be readable"])
    refused([path], "\ud800", "y", says=[r"'\ud800'"])


@pytest.mark.parametrize("storage", [{}, {"chunks": (1024,)}, {"chunks": (1024,), "compression": "gzip"}])
def test_rows_that_no_file_can_hold_are_refused(path: Path, storage: dict) -> None:
    with h5py.File(path, "a") as file:
        for name in ("many", "as_many"):
            file.create_dataset(name, shape=(2**50,), dtype="f8", **storage)
        if storage:
            file["many"][:2000] = 1
        file.create_dataset("flat", shape=(2**50, 0), dtype="f4")
        file.create_dataset("wide", shape=(3, 2**48), dtype="u1")
        file.create_dataset("unwritten", shape=(3,), dtype="i8", **storage | ({"chunks": (2,)} if storage else {}))
    refused([path], "many", "as_many", says=["'many'", "(1125899906842624,)", "are stored"])
    refused([path], "flat", "flat", says=["are stored"])
    refused([path], "wide", "y", says=["are stored"])
    # HDF5 stores nothing of a data set into which nothing was written.
    assert Hdf5Source([path], "x", "unwritten").read_labels().tolist() == [0, 0, 0]


def leading_out(path: Path) -> list[str]:
    """Write data sets that lie in another file, or may do so; return their names."""
    other, raw = path.with_name("other.h5"), path.with_name("raw")
    raw.write_bytes(np.arange(3.0).tobytes())
    with h5py.File(other, "w") as file:
        file["x"], file["g/x"] = np.arange(3.0), np.arange(3.0)
    with h5py.File(path, "a") as file:
        file["link"], file["group"] = h5py.ExternalLink("other.h5", "/x"), h5py.ExternalLink("other.h5", "/g")
        file["soft"], file["inner/link"] = h5py.SoftLink("/group/x"), h5py.ExternalLink("other.h5", "/x")
        file.create_dataset("raw", (3,), "f8", external=[(str(raw), 0, 24)])
        for name, source in (("virtual", (str(other), "x")), ("inside", (".", "link"))):
            layout = h5py.VirtualLayout((3,), "f8")
            layout[:] = h5py.VirtualSource(*source, (3,))
            file.create_virtual_dataset(name, layout)
    return ["link", "group", "group/x", "soft", "inner", "raw", "virtual", "inside"]


def test_other_files_are_read_only_if_asked_for(path: Path) -> None:
    for name in leading_out(path):
        refused([path], name, "y", says=["refers to another file", "`--external-data`"])
        x, _ = Hdf5Source([path], name, "y", external=True).read(np.array([2]))
        assert np.ravel(x).tolist() == [2], name
    refusal(Hdf5Source([path], "x", "y").read_column, "raw", says=["refers to another file"])


def test_another_file_is_not_even_opened(path: Path) -> None:
    leading_out(path)
    path.with_name("other.h5").unlink()
    for name in ("link", "group/x", "virtual"):
        refused([path], name, "y", says=["refers to another file"])


def test_a_file_that_leads_elsewhere_later_fails_the_trial(path: Path) -> None:
    source = Hdf5Source([path], "x", "y")
    with h5py.File(path, "a") as file:
        del file["x"]
        file["x"] = h5py.ExternalLink("other.h5", "/x")
    with pytest.raises(TrialError, match="refers to another file"):
        source.read(np.arange(3))


def test_links_inside_the_file_are_followed(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file.create_group("g")["relative"] = h5py.SoftLink("deep/x")
        file["g/deep/x"] = h5py.SoftLink("/./hard")
        file["hard"] = file["x"]
    for name in ("g/relative", "/g//deep/./x", "./hard/"):
        assert Hdf5Source([path], name, "y").read(np.array([0]))[0].tolist() == [[1, 1]]
    assert Hdf5Source([path], "g", "y").info.feature_shape == [[(2,)], (2,)]


def test_links_without_an_end(path: Path) -> None:
    with h5py.File(path, "a") as file:
        file["loop"] = h5py.SoftLink("/loop")
        file["to_nothing"] = h5py.SoftLink("/nothing")
        group = file.create_group("group")
        group["again"] = group
    refused([path], "loop", "y", says=["without 'loop'"])
    refused([path], "to_nothing", "y", says=["without 'to_nothing'"])
    refused([path], "group", "y", says=["without 'group/again/again/"])
