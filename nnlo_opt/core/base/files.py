"""Atomic and durable file writes, and JSON with checksums."""

import errno
import hashlib
import json
import math
import os
import re
import stat
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from nnlo_opt.core.base.safe_path import MOST_BYTES, SafePath

#: path given by the user, or path of a file of a run
AnyPath = TypeVar("AnyPath", Path, SafePath)
#: errors of a file system without locks: NFS without a lock service, Lustre without `-o flock`, FUSE
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})
#: longest file name in bytes, on all common file systems
MAX_NAME_BYTES = 255
#: most levels of nested data that are read; no file of ours or of Keras has 50, and Python's recursion limit is 1000
MAX_DEPTH = 100


def write_fully(fd: int, data: bytes) -> None:
    """Write all of `data`: on a full disk `os.write` may write less without an error."""
    view = memoryview(data)
    while view:
        n_written = os.write(fd, view)
        if n_written == 0:
            raise OSError(f"no byte could be written to file descriptor {fd}: is the disk full?")
        view = view[n_written:]


def sync(path: Path | SafePath) -> None:
    """Flush a file's content, or a directory's entries (a rename, a new file), to disk."""
    if isinstance(path, SafePath):
        return path.sync()
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_directory(directory: Path | SafePath) -> None:
    """Create `directory` and its missing parents durably; otherwise files synced in it could be lost."""
    if directory.is_dir():
        return
    make_directory(directory.parent)
    directory.mkdir(exist_ok=True)
    with suppress(PermissionError):  # a folder can be writable but not readable
        sync(directory.parent)


@contextmanager
def atomic_path(path: AnyPath, *, durable: bool = True) -> Iterator[AnyPath]:
    """Yield a temporary path next to `path`; when the block succeeds, the file is renamed to `path`.

    Args:
        durable: also wait until data and name are on disk.
    """
    # The suffix stays last, because NumPy and Keras choose the format by it. Both parts are cut, because a name of
    # maximum length must not become longer.
    stem, suffix = os.path.splitext(path.name)
    temporary = path.with_name(f".{stem[:24]}.{uuid.uuid4().hex[:12]}{suffix[-24:]}")
    try:
        yield temporary
        if durable:
            sync(temporary)
        temporary.replace(path)
        if durable:
            sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def atomic_write(path: AnyPath, data: bytes | str, *, durable: bool = True) -> None:
    """Write `data` to `path` atomically: a crash leaves the old file or the new one.

    `durable`: also wait until data and name are on disk.
    """
    if isinstance(data, str):
        # The text may contain lone surrogates, for example of a file name that is not UTF-8.
        data = data.encode(errors="backslashreplace")
    with atomic_path(path, durable=durable) as temporary:
        temporary.write_bytes(data)


def short_name(stem: str, suffix: str) -> str:
    """Return a file name: `stem` with `_` for invalid characters and a hash in place of a long end, then `suffix`."""
    name, n_bytes = re.sub(r"[/\0\ud800-\udc7f\udd00-\udfff]", "_", stem), MAX_NAME_BYTES - len(suffix)
    if len(encoded := os.fsencode(name)) > n_bytes:
        name = f"{encoded[: n_bytes - 13].decode(errors='ignore')}-{hashlib.sha256(encoded).hexdigest()[:12]}"
    return name + suffix


def regular(path: Path, most: int = MOST_BYTES) -> Path:
    """Return `path` of a user's file after checking it; it may be a link.

    Raises:
        OSError: it does not exist, has more than `most` bytes, or is a FIFO, socket or device, on which `open` might
            block.
    """
    about = path.stat()
    if not (stat.S_ISREG(about.st_mode) or stat.S_ISDIR(about.st_mode)):  # `open` refuses a folder anyway
        raise OSError("not a regular file")
    if about.st_size > most:
        raise OSError(errno.EFBIG, f"has more than {most:,} bytes", str(path))
    return path


def with_checksum(data: dict[str, Any]) -> str:
    """Return one line of JSON with the plain `data` and a checksum."""
    return json.dumps({"crc": _checksum(data), **data}) + "\n"


def without_checksum(text: str | bytes, unchecked: Set[str] | None = None) -> dict[str, Any]:
    """Return the data that `with_checksum` wrote; ValueError if `text` is damaged.

    Args:
        unchecked: all names in data of an earlier version without a checksum, which is returned unchecked.
    """
    data = parse_object(text)
    if data.keys() != unchecked and data.pop("crc", None) != _checksum(data):
        raise ValueError("its checksum does not match")
    return data


def _checksum(data: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(data, sort_keys=True).encode()):08x}"


def parse_object(text: str | bytes, **readers: Any) -> dict[str, Any]:
    """Parse a JSON object; ValueError as for `parse_json`, or if `text` is another kind of JSON."""
    data = parse_json(text, **readers)
    if not isinstance(data, dict):
        raise ValueError("it is not a JSON object")
    return data


def parse_json(text: str | bytes, **readers: Any) -> Any:
    """Parse JSON; ValueError if `text` is not JSON, or nested more than `MAX_DEPTH` levels deep.

    Args:
        readers: further arguments of `json.loads`, for example `ALL_FINITE`.
    """
    with suppress(RecursionError):
        data = json.loads(text, **readers)
        level = [data]
        for _ in range(MAX_DEPTH + 1):
            level = [item for value in level for item in _items(value)]
            if not level:
                return data
    raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")


def _finite(text: str) -> float:
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is not finite")
    return number


#: arguments of `parse_json` that refuse non-finite numbers
ALL_FINITE: dict[str, Callable[[str], float]] = {"parse_float": _finite, "parse_constant": _finite}


def _items(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
