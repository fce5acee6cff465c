"""Folder of files that is valid as a whole, or not at all.

    checkpoint-3/manifest.json  names, sizes and checksums of all other files, with a checksum of its own; written last
    checkpoint-3.1/             another one of the same epoch

Files are written to a hidden folder, which `begin` creates and `complete` gives its name once its manifest is safe. The
name is new each time, so that a kill at any moment leaves this folder or the one before it.

The newest checkpoint of a training is the one with the most samples trained. An objective saves epochs in any order:
`number` in the manifest counts its saves, and the newest is the last one.
"""

import errno
import logging
import math
import re
import uuid
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeVar

from nnlo_opt.core.base.errors import CheckpointError
from nnlo_opt.core.base.files import make_directory, parse_object, sync, with_checksum, without_checksum
from nnlo_opt.core.base.records import Number, checked
from nnlo_opt.core.base.safe_path import SafePath

logger = logging.getLogger(__name__)

_NAME = re.compile(r"checkpoint-(\d{1,16})(?:-(\d{1,16}))?(?:\.(\d{1,16}))?")
_MANIFEST = "manifest.json"
#: names in a manifest of the first version, which had no checksum
_FIRST_MANIFEST = frozenset({"epoch", "files"})
#: bytes of a file that are read at a time; of a manifest at most, which has about 100 for each file
_PART_BYTES, _MOST_BYTES = 2**20, 2**28
_T = TypeVar("_T")


def begin(directory: SafePath, epoch: int) -> SafePath:
    """Create and return a folder to write to; `complete` makes it a checkpoint, `abandon` removes it."""
    make_directory(directory)
    temporary = _hidden(directory / f"checkpoint-{epoch}")
    temporary.mkdir()
    return temporary


def _hidden(place: SafePath) -> SafePath:
    return place.with_name(f".{place.name}.{uuid.uuid4().hex[:12]}")


def abandon(temporary: SafePath | None) -> None:
    """Remove a folder of `begin`."""
    if temporary is not None:
        with suppress(OSError):
            temporary.remove()


def complete(
    temporary: SafePath,
    epoch: int,
    files: Mapping[str, Any],
    n_samples_inside: int = 0,
    *,
    is_numbered: bool = False,
    **facts: Any,
) -> SafePath:
    """Give a folder of `begin` its manifest and its name, remove older checkpoints; return the folder.

    Args:
        temporary: folder of `begin`, with all files.
        epoch: number of finished epochs.
        files: name -> fingerprint of every file (`synced`).
        n_samples_inside: samples of the next epoch that are trained already.
        is_numbered: give it the next number: it is the newest one, whatever its epoch.
        facts: further values for the manifest.
    """
    directory = temporary.parent
    before = _found(directory)
    if is_numbered:
        known = [number for _, path in before if (number := _number(path)) < math.inf]
        facts["number"] = 1 + int(max(known, default=0))
    text = with_checksum({"epoch": epoch, "files": {**files}, **facts}).encode()
    if len(text) > _MOST_BYTES:
        raise OSError(errno.EFBIG, f"a checkpoint of {len(files):,} files has too long a manifest", str(directory))
    manifest = temporary / _MANIFEST
    manifest.write_bytes(text)
    sync(manifest)
    sync(temporary)
    same = [key[2] + 1 for key, _ in before if key[:2] == (epoch, n_samples_inside)]
    inside, again = f"-{n_samples_inside}" if n_samples_inside else "", f".{max(same)}" if same else ""
    place = directory / f"checkpoint-{epoch}{inside}{again}"
    temporary.replace(place)
    sync(directory)
    for key, path in before:
        if is_numbered or key[:2] <= (epoch, n_samples_inside):
            with suppress(OSError):
                path.replace(hidden := _hidden(path))  # half of it is not found under its name
                hidden.remove()
    return place


def newest(directory: SafePath, load: Callable[[SafePath], _T], *, is_numbered: bool = False) -> _T | None:
    """Return what `load` makes of the newest checkpoint in `directory` that is valid; a warning names any newer one.

    Args:
        is_numbered: the manifests may have a `number`.
    """
    found = [path for _, path in _found(directory)]
    for path in sorted(found, key=_number, reverse=True) if is_numbered else found:
        try:
            return load(path)
        except CheckpointError as error:
            logger.warning("skipped a checkpoint: %s", error)
    return None


def _number(place: SafePath) -> float:
    """Return the number in a manifest, 0 in one of an older version; infinity if it cannot be read."""
    try:
        return checked(read_manifest(place).get("number", 0), Number)
    except (OSError, ValueError, TypeError, KeyError, CheckpointError):
        return math.inf


def read_manifest(place: SafePath) -> dict[str, Any]:
    """Return the manifest of a checkpoint, with the names of its `files`; CheckpointError if one has been lost."""
    text = (place / _MANIFEST).read_bytes(_MOST_BYTES)
    manifest = without_checksum(text, _FIRST_MANIFEST)
    # Without a checksum, only the folder shows if a name has been lost.
    names = {path.name for path in place.iterdir()} if "crc" not in parse_object(text) else set[str]()
    if lost := names - {_MANIFEST, *manifest["files"]}:
        raise CheckpointError(f"`{place}` has a manifest without {', '.join(sorted(lost))}")
    return manifest


def verify(place: SafePath, files: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless the files of a checkpoint agree with their fingerprints."""
    for name, expected in files.items():
        if (place / name).stat().st_size != expected["size"] or _fingerprint(place / name) != expected:
            raise CheckpointError(f"`{place / name}` does not agree with its manifest")


def remove_all(directory: SafePath) -> None:
    """Remove every checkpoint in `directory`, including those that crashes have left half written."""
    with suppress(OSError):
        for _, path in _found(directory):
            path.remove()
    remove_unfinished(directory)


def remove_unfinished(directory: SafePath) -> None:
    """Remove folders of `begin` that crashes have left in `directory`; nobody may be writing to one."""
    with suppress(OSError):
        for path in directory.glob(".checkpoint-*"):
            path.remove()


def synced(path: SafePath) -> dict[str, Any]:
    """Return the fingerprint of a file that has just been written, once the file is on disk."""
    sync(path)
    return _fingerprint(path)


def _fingerprint(path: SafePath) -> dict[str, Any]:
    crc = 0
    with path.open("rb") as file:
        while part := file.read(_PART_BYTES):
            crc = zlib.crc32(part, crc)
        return {"size": file.tell(), "crc32": f"{crc:08x}"}


def _found(directory: SafePath) -> list[tuple[tuple[int, int, int], SafePath]]:
    """Return ((epochs, further samples, times it was made before), folder) for each checkpoint, the newest first."""
    matches = ((_NAME.fullmatch(path.name), path) for path in directory.glob("checkpoint-*"))
    found = [((int(match[1]), int(match[2] or 0), int(match[3] or 0)), path) for match, path in matches if match]
    return sorted(found, reverse=True)
