"""Folders of files with a manifest, valid as a whole or not at all.

    checkpoint-3/manifest.json  names, sizes and checksums of all other files, with its own checksum; written last
    checkpoint-3.1/             another checkpoint of the same epoch

Files are written to a hidden folder, created by `begin` and renamed by `complete` once its manifest is on disk. Names
are never reused, so a kill at any moment leaves this folder or the previous one. Under its name a checkpoint is never
changed; it is hidden before it is removed. So another process can take it by renaming it.

The newest checkpoint of a training is the one with the most trained samples. An objective may save epochs in any order:
there `number` in the manifest counts the saves.
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
#: keys of a manifest of the first version, which had no checksum
_FIRST_MANIFEST = frozenset({"epoch", "files"})
#: bytes read at a time; largest manifest, which has about 100 bytes per file
_PART_BYTES, _MOST_BYTES = 2**20, 2**28
_T = TypeVar("_T")


def begin(directory: SafePath, epoch: int) -> SafePath:
    """Create and return a folder to write to; call `complete` to make it a checkpoint, or `abandon` to remove it."""
    make_directory(directory)
    temporary = _hidden(directory / f"checkpoint-{epoch}")
    temporary.mkdir()
    return temporary


def _hidden(place: SafePath) -> SafePath:
    return place.with_name(f".{place.name.lstrip('.')}.{uuid.uuid4().hex[:12]}")


def _discard(place: SafePath) -> None:
    """Remove a checkpoint or a folder of `begin` if possible, and if no other process has renamed it first."""
    with suppress(OSError):
        place.replace(hidden := _hidden(place))  # a half-removed folder must not keep its name
        hidden.remove()


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
    """Write the manifest of a folder of `begin`, rename the folder, remove older checkpoints; return the folder.

    Args:
        temporary: folder of `begin`, with all files.
        epoch: number of finished epochs.
        files: name -> fingerprint of every file (`synced`).
        n_samples_inside: samples of the next epoch already trained.
        is_numbered: True to number it as the newest, regardless of its epoch.
        facts: further values for the manifest.
    """
    directory = temporary.parent
    before = _found(directory)
    if is_numbered:
        known = [number for _, path in before if (number := _number(path)) < math.inf]
        facts["number"] = 1 + int(max(known, default=0))
    text = with_checksum({"epoch": epoch, "files": {**files}, **facts}).encode()
    if len(text) > _MOST_BYTES:
        raise OSError(
            errno.EFBIG, f"the manifest of a checkpoint with {len(files):,} files is too long", str(directory)
        )
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
            _discard(path)
    return place


def newest(directory: SafePath, load: Callable[[SafePath], _T], *, is_numbered: bool = False) -> _T | None:
    """Return the result of `load` for the newest valid checkpoint in `directory`; warn about newer, invalid ones.

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
    """Return the number in a manifest: 0 in an older version; infinity if it cannot be read."""
    try:
        return checked(read_manifest(place).get("number", 0), Number)
    except (OSError, ValueError, TypeError, KeyError, CheckpointError):
        return math.inf


def read_manifest(place: SafePath) -> dict[str, Any]:
    """Return the manifest of a checkpoint; CheckpointError if one of its `files` is missing."""
    text = (place / _MANIFEST).read_bytes(_MOST_BYTES)
    manifest = without_checksum(text, _FIRST_MANIFEST)
    # Without a checksum, only the folder shows whether a name is missing.
    names = {path.name for path in place.iterdir()} if "crc" not in parse_object(text) else set[str]()
    if lost := names - {_MANIFEST, *manifest["files"]}:
        raise CheckpointError(f"`{place}` has a manifest without {', '.join(sorted(lost))}")
    return manifest


def verify(place: SafePath, files: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless all files of a checkpoint match their fingerprints."""
    for name, expected in files.items():
        if (place / name).stat().st_size != expected["size"] or _fingerprint(place / name) != expected:
            raise CheckpointError(f"`{place / name}` does not match its manifest")


def remove_all(directory: SafePath) -> None:
    """Remove every checkpoint in `directory`, including half-written ones."""
    with suppress(OSError):
        for _, path in _found(directory):
            _discard(path)
    remove_unfinished(directory)


def remove_unfinished(directory: SafePath) -> None:
    """Remove folders of `begin` left by crashes in `directory`. Call only if nobody is writing to one."""
    with suppress(OSError):
        for path in directory.glob(".checkpoint-*"):
            _discard(path)


def synced(path: SafePath) -> dict[str, Any]:
    """Flush a file that was just written to disk, and return its fingerprint."""
    sync(path)
    return _fingerprint(path)


def _fingerprint(path: SafePath) -> dict[str, Any]:
    crc = 0
    with path.open("rb") as file:
        while part := file.read(_PART_BYTES):
            crc = zlib.crc32(part, crc)
        return {"size": file.tell(), "crc32": f"{crc:08x}"}


def _found(directory: SafePath) -> list[tuple[tuple[int, int, int], SafePath]]:
    """Return ((epochs, further samples, repetition), folder) of each checkpoint, newest first."""
    matches = ((_NAME.fullmatch(path.name), path) for path in directory.glob("checkpoint-*"))
    found = [((int(match[1]), int(match[2] or 0), int(match[3] or 0)), path) for match, path in matches if match]
    return sorted(found, reverse=True)
