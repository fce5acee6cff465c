"""Writing of files completely or not at all."""

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


def sync(path: Path) -> None:
    """Make the content of a file, or the entries of a directory (a rename, a new file), durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(directory: Path) -> None:
    """Create `directory` and its missing parents durably; without a durable entry, files synced in it could be lost."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    with suppress(PermissionError):  # a folder may be writable but not readable
        sync(directory.parent)


@contextmanager
def atomic_path(path: Path, *, durable: bool = True) -> Iterator[Path]:
    """Yield a temporary path next to `path`, which the file gets after the block succeeds.

    Args:
        durable: also wait until the data and the name are on the disk.
    """
    # The suffix stays last, because writers like numpy and keras choose the format by it.
    temporary = path.with_name(f".{path.stem}.{uuid.uuid4().hex[:12]}{path.suffix}")
    try:
        yield temporary
        if durable:
            sync(temporary)
        os.replace(temporary, path)
        if durable:
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write(path: Path, data: bytes | str, *, durable: bool = True) -> None:
    """Write `data` to `path` completely or not at all; `durable` as for `atomic_path`."""
    if isinstance(data, str):
        # A text may quote characters without an encoding, for example a file name that is not UTF-8.
        data = data.encode(errors="backslashreplace")
    with atomic_path(path, durable=durable) as temporary:
        temporary.write_bytes(data)


def with_checksum(data: dict[str, Any]) -> str:
    """Return a line of JSON with the plain `data` and their checksum."""
    return json.dumps({"crc": _checksum(data), **data}) + "\n"


def without_checksum(text: str) -> dict[str, Any]:
    """Return the data that `with_checksum` wrote; ValueError if `text` is damaged."""
    data = json.loads(text)
    if not isinstance(data, dict) or data.pop("crc", None) != _checksum(data):
        raise ValueError("its checksum does not agree")
    return data


def _checksum(data: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(data, sort_keys=True).encode()):08x}"
