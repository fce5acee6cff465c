"""Files written whole or not at all, and small ones that show whether they are damaged."""

import json
import os
import uuid
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any


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


def with_checksum(data: dict[str, Any]) -> str:
    """A line of JSON: `data`, plain, and a checksum of it."""
    return json.dumps({"crc": _checksum(data), **data}) + "\n"


def without_checksum(text: str) -> dict[str, Any]:
    """What `with_checksum` was given; ValueError where `text` is damaged."""
    data = json.loads(text)
    if not isinstance(data, dict) or data.pop("crc", None) != _checksum(data):
        raise ValueError("its checksum does not agree")
    return data


def _checksum(data: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(data, sort_keys=True).encode()):08x}"
