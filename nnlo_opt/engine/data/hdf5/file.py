"""HDF5 file opened for reading, which leads to no other file unless that is allowed.

A file of somebody else may hold anything. Its names may be no UTF-8: they are text with surrogates here, as file names
are in Python. Its links and data sets may lead to any file that the user can read. It may declare more than there is.
"""

import math
import os
import re
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

from nnlo_opt.core.base.errors import ConfigurationError, NnloError, TrialError
from nnlo_opt.core.base.files import regular
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.engine.data.lists import looked_in

#: bytes that a data set may declare beyond what is stored of it, besides as many as its file has: HDF5 fills them with
#: one value, as in labels that are all 0 and were never written
UNWRITTEN_BYTES = 256 << 20
#: names on the way to an object, those in soft links included
_MOST_STEPS = 64
#: first `/` of an absolute path, and the names of a path
_STEP = re.compile(rb"^/|(?!\.(?:/|$))[^/]+")
_LEADS_OUT = "it leads to another file, or may do so; only data are read so, and only with"


class DataFile(h5py.File):
    """HDF5 file open for reading.

    Args:
        path: the file.
        external: True if links and data sets may lead to other files.
    """

    def __init__(self, path: Path, *, external: bool) -> None:
        # Parallel file systems are often mounted without locks, and readers do not need them.
        super().__init__(regular(path), "r", locking="best-effort")
        self._leads_out = external
        #: True if libhdf5 has to decode a data set that was checked, and damage of its values may crash it
        self.is_coded = False

    def reach(self, name: str, start: h5py.Group | None = None) -> h5py.Dataset | h5py.Group | None:
        """Return the object `name` of this file, from the group `start` or from the root; None if there is none.

        Links are followed one by one, as libhdf5 opens another file even to say if a link to it is sound.

        Raises:
            ValueError: the object lies in another file, or its values may.
        """
        path, place = name.encode(errors="surrogateescape"), self if start is None else start
        if self._leads_out:
            return place.get(path)
        steps = deque(_STEP.findall(path))
        for _ in range(_MOST_STEPS):
            if not steps:
                if isinstance(place, h5py.Dataset) and (place.external or place.is_virtual):
                    raise ValueError(f"{_LEADS_OUT} `{spelled('external_data', True)}`")
                return place
            step = steps.popleft()
            if step == b"/":
                place = self
            elif not isinstance(place, h5py.Group) or not place.id.links.exists(step):
                return None
            elif (kind := place.id.links.get_info(step).type) == h5py.h5l.TYPE_SOFT:
                steps.extendleft(reversed(_STEP.findall(place.id.links.get_val(step))))
            elif kind == h5py.h5l.TYPE_HARD:
                place = place[step]
            else:
                raise ValueError(f"{_LEADS_OUT} `{spelled('external_data', True)}`")
        return None

    def need(self, name: str, start: h5py.Group | None = None, kind: type = h5py.Dataset) -> Any:
        """Return what `reach` returns; ValueError also if it is not of this kind."""
        found = self.reach(name, start)
        if not isinstance(found, kind):
            raise ValueError(f"{name!r} is not there")
        return found

    def check(self, dataset: h5py.Dataset) -> None:
        """Raise ValueError if a data set declares more than its file can hold."""
        self.is_coded |= dataset.dtype.hasobject or dataset.id.get_create_plist().get_nfilters() > 0
        if not dataset.shape or dataset.external or dataset.is_virtual:
            return
        value_bytes, file_bytes = dataset.id.get_type().get_size(), dataset.file.id.get_filesize()
        # Rows without values count, too: there is an index of every row.
        declared = dataset.shape[0] * max(1, math.prod(dataset.shape[1:]) * value_bytes)
        stored = min(dataset.id.get_storage_size(), file_bytes)
        if dataset.chunks:
            stored = dataset.id.get_num_chunks() * math.prod(dataset.chunks) * value_bytes
        if declared - stored > file_bytes + UNWRITTEN_BYTES:
            raise ValueError(f"the shape {dataset.shape}, {declared} bytes, of which at most {stored} are stored")


@contextmanager
def open_file(path: Path, blame: type[NnloError], *, external: bool = False) -> Iterator[DataFile]:
    """Open the file for reading; raise a `blame` if it cannot be read. `external`: as of `DataFile`."""
    try:
        file = DataFile(path, external=external)
    except FileNotFoundError as error:
        where = looked_in(str(path))
        raise blame(
            f"A data file must exist. Received: {path}{where}, which does not. Check the list of files."
        ) from error
    except Exception as error:  # h5py raises half a dozen kinds
        raise blame(
            f"A data file must be a complete HDF5 file that can be read. Received: {path} ({reason_of(error)}). "
            f"Write it again or leave it out."
        ) from error
    with file:
        yield file


@contextmanager
def reading(name: str, path: Path, blame: type[NnloError]) -> Iterator[None]:
    """Turn every exception inside the context into a `blame` that names data set and file."""
    try:
        yield
    except NnloError:
        raise
    except Exception as error:
        if isinstance(error, MemoryError) and blame is TrialError:
            raise  # the fault of samples that are too many, not of the file
        raise blame(
            f"Data set {name!r} of {path} must be readable. Received: {reason_of(error)}. Write the file again or "
            f"leave it out."
        ) from error


def find(file: DataFile, name: str, path: Path) -> h5py.Dataset | h5py.Group:
    """Return the checked data set or group `name`; `ConfigurationError` with the existing names if there is none."""
    with reading(name, path, ConfigurationError):
        found = file.reach(name)
        if isinstance(found, h5py.Dataset):
            file.check(found)
    if isinstance(found, h5py.Dataset | h5py.Group):
        return found
    raise ConfigurationError(
        f"Every data file must hold the requested data sets. Received: {path} without {name!r}. {_there(file, path)}"
    )


def find_dataset(file: DataFile, name: str, path: Path) -> h5py.Dataset:
    """Return the checked data set `name`; `ConfigurationError` if there is none."""
    found = find(file, name, path)
    if isinstance(found, h5py.Dataset):
        return found
    raise ConfigurationError(
        f"A data set must be requested by its own name. Received: {name!r}, a group in {path}. {_there(file, path)}"
    )


def text_of(name: str | bytes) -> str:
    """Return a name in a file as text, with surrogates for bytes that are no UTF-8."""
    return name.decode(errors="surrogateescape") if isinstance(name, bytes) else name


def reason_of(error: Exception) -> str:
    """Return the reason in a few words; HDF5's own text hides it among times and addresses."""
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number else (str(error).splitlines() or [type(error).__name__])[0].strip()


def _there(file: DataFile, path: Path) -> str:
    names: list[str] = []
    with reading("/", path, ConfigurationError):
        file.visititems(lambda key, item: names.append(text_of(key)) if isinstance(item, h5py.Dataset) else None)
    # Only a text without surrogates can be printed.
    listed = ", ".join(names).encode(errors="surrogateescape").decode(errors="backslashreplace")
    return f"The data sets are: {listed}." if names else "There is no data set."
