"""Safe reading of HDF5 files, which cannot reach other files unless that is allowed.

A file from somebody else may contain anything. Its names may not be UTF-8: we keep them as text with surrogates, like
Python's file names. Its links and data sets may point to any file that the user can read. It may declare more data than
it stores.
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

#: unstored bytes that a data set may declare beyond the size of its file: HDF5 fills unwritten parts with one value,
#: for example labels that are all 0 and were never written
UNWRITTEN_BYTES = 256 << 20
#: most names in the path to an object, including those in soft links
_MOST_STEPS = 64
#: the leading `/` of an absolute path, or one name of a path
_STEP = re.compile(rb"^/|(?!\.(?:/|$))[^/]+")
_LEADS_OUT = "it refers to another file, or may do so; only data may do that, and only with"


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
        #: True if a checked data set needs decoding by libhdf5, which damaged values may crash
        self.is_coded = False

    def reach(self, name: str, start: h5py.Group | None = None) -> h5py.Dataset | h5py.Group | None:
        """Return the object `name` of this file, relative to the group `start` or the root; None if there is none.

        Links are followed one by one, because libhdf5 opens the other file even to check whether a link is valid.

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
        """Like `reach`, but also raise ValueError if the object is not of this kind."""
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
        # Empty rows count, too: every row has an index entry.
        declared = dataset.shape[0] * max(1, math.prod(dataset.shape[1:]) * value_bytes)
        stored = min(dataset.id.get_storage_size(), file_bytes)
        if dataset.chunks:
            stored = dataset.id.get_num_chunks() * math.prod(dataset.chunks) * value_bytes
        if declared - stored > file_bytes + UNWRITTEN_BYTES:
            raise ValueError(f"the shape {dataset.shape}, {declared} bytes, of which at most {stored} are stored")


@contextmanager
def open_file(path: Path, blame: type[NnloError], *, external: bool = False) -> Iterator[DataFile]:
    """Open the file for reading; raise `blame` if it cannot be read. `external`: see `DataFile`."""
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
    """Convert every exception in the context to `blame`, naming data set and file."""
    try:
        yield
    except NnloError:
        raise
    except Exception as error:
        if isinstance(error, MemoryError) and blame is TrialError:
            raise  # too many samples; the file is not to blame
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
    """Return a name in a file as text, with surrogates for bytes that are not UTF-8."""
    return name.decode(errors="surrogateescape") if isinstance(name, bytes) else name


def reason_of(error: Exception) -> str:
    """Return the short reason, which HDF5's own message buries among times and addresses."""
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number else (str(error).splitlines() or [type(error).__name__])[0].strip()


def _there(file: DataFile, path: Path) -> str:
    names: list[str] = []
    with reading("/", path, ConfigurationError):
        file.visititems(lambda key, item: names.append(text_of(key)) if isinstance(item, h5py.Dataset) else None)
    # Text with surrogates cannot be printed.
    listed = ", ".join(names).encode(errors="surrogateescape").decode(errors="backslashreplace")
    return f"The data sets are: {listed}." if names else "There is no data set."
