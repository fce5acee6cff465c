"""Opening of HDF5 files, with every error as one sentence."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from nnlo_opt.errors import ConfigurationError, NnloError


@contextmanager
def open_file(path: Path, blame: type[NnloError]) -> Iterator[h5py.File]:
    """Open the file for reading; raise a `blame` if it cannot be read."""
    try:
        # Parallel file systems are often mounted without locks, and readers do not need them.
        file = h5py.File(path, "r", locking="best-effort")
    except FileNotFoundError as error:
        raise blame(f"A data file must exist. Received: {path}, which does not. Check the list of files.") from error
    except OSError as error:
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
    except MemoryError:
        raise
    except Exception as error:
        raise blame(
            f"Data set {name!r} of {path} must be readable. Received: {reason_of(error)}. Write the file again or "
            f"leave it out."
        ) from error


def find(file: h5py.File, name: str, path: Path) -> h5py.Dataset | h5py.Group:
    """Return the data set or group `name`; `ConfigurationError` with the existing names if there is none."""
    with reading(name, path, ConfigurationError):
        found = file.get(name)
    if isinstance(found, h5py.Dataset | h5py.Group):
        return found
    raise ConfigurationError(
        f"Every data file must hold the requested data sets. Received: {path} without {name!r}. {_there(file, path)}"
    )


def find_dataset(file: h5py.File, name: str, path: Path) -> h5py.Dataset:
    """Return the data set `name`; `ConfigurationError` if there is none."""
    found = find(file, name, path)
    if isinstance(found, h5py.Dataset):
        return found
    raise ConfigurationError(
        f"A data set must be requested by its own name. Received: {name!r}, a group in {path}. {_there(file, path)}"
    )


def reason_of(error: Exception) -> str:
    """Return the reason in a few words; HDF5's own text hides it among times and addresses."""
    number = error.errno if isinstance(error, OSError) else None
    return os.strerror(number) if number else (str(error).splitlines() or [type(error).__name__])[0].strip()


def _there(file: h5py.File, path: Path) -> str:
    names: list[str] = []
    with reading("/", path, ConfigurationError):
        file.visititems(lambda key, item: names.append(key) if isinstance(item, h5py.Dataset) else None)
    return f"The data sets are: {', '.join(names)}." if names else "There is no data set."
