"""Files written whole or not at all."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_fully(fd: int, data: bytes) -> None:
    """Write all of `data`; a full disk makes `os.write` short without an error, so the count is checked."""
    view = memoryview(data)
    while view:
        n_written = os.write(fd, view)
        if n_written == 0:
            raise OSError(f"no byte could be written to file descriptor {fd}: is the disk full?")
        view = view[n_written:]


def sync_directory(directory: Path) -> None:
    """Make the entries of `directory` (a rename, a new file) durable."""
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(directory: Path) -> None:
    """Make `directory` and what is missing above it, durably: without a folder's entry what is synced in it is lost."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    with suppress(PermissionError):  # one may write to a folder that one may not read
        sync_directory(directory.parent)


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; when the block ends well it is synced and renamed to `path`."""
    # The suffix stays last: writers such as numpy and keras choose the format by it.
    temporary = path.with_name(f".{path.stem}.{uuid.uuid4().hex[:12]}{path.suffix}")
    try:
        yield temporary
        fd = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
        sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write(path: Path, data: bytes | str, *, durable: bool = True) -> None:
    """Write `data` to `path` whole or not at all; `durable` also waits until the disk has it."""
    if isinstance(data, str):
        # A text may quote what no encoding has, such as a file name that is not UTF-8.
        data = data.encode(errors="backslashreplace")
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            write_fully(fd, data)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, path)
        if durable:
            sync_directory(path.parent)
    finally:
        temporary.unlink(missing_ok=True)
