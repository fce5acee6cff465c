"""Checkpoint of a fold: valid as a whole, or not at all.

    checkpoint-3/master.npz     arrays of the master: central weights, model state, optimizer state, best weights
    checkpoint-3/master.json    everything else of the master: epoch, version, history
    checkpoint-3/worker-1.json  state of worker 1 at the fence: data position, discrete model state
    checkpoint-3/worker-1.npz   state of its update rule, if there is any; written by the worker
    checkpoint-3/group-1-3.npz  state of the sub-master of workers 1 to 3; written by the sub-master
    checkpoint-3/manifest.json  names, sizes and checksums of the files above, with a checksum of its own; written last
    checkpoint-3-1200/          the same, 1200 samples into the next epoch; `worker-1.npz` holds its model state too

A directory without a manifest that agrees with its files is not a checkpoint. The master creates the directory,
completes it after the workers have written, then gives it its name.
"""

import json
import logging
import math
import re
import uuid
import zipfile
import zlib
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import numpy as np

from nnlo_opt.errors import CheckpointError
from nnlo_opt.files import atomic_path, make_directory, parse_object, sync, with_checksum, without_checksum
from nnlo_opt.records import Value
from nnlo_opt.safe_path import MOST_BYTES, SafePath

logger = logging.getLogger(__name__)

_NAME = re.compile(r"checkpoint-(\d+)(?:-(\d+))?")
_MASTER_FILES = {"master.npz", "master.json"}
WEIGHTS_NAME = "weights.npz"
#: name -> (dimensions, type) of the arrays of `weights.npz`
_WEIGHTS = {"weights": (1, np.dtype(np.float32)), "state": (1, np.dtype(np.float32))}
#: names of the files that a manifest may name: number of a worker, ending; first and last worker of a group
_PART = re.compile(r"master\.(?:json|npz)|worker-(\d+)\.(json|npz)|group-(\d+)-(\d+)\.npz")
#: names in a manifest of the first version, which had no checksum
_FIRST_MANIFEST = frozenset({"epoch", "files"})


class Checkpoint(Value):
    """State of a fold at a fence."""

    #: number of finished epochs
    epoch: int
    #: float32 vectors and optimizer state by name
    arrays: Mapping[str, np.ndarray]
    #: plain data
    master: Mapping[str, Any]
    #: worker number (from 1) -> plain data
    workers: Mapping[int, Mapping[str, Any]]
    #: number of training samples of the next epoch that are trained already; 0 between two epochs
    n_samples_inside: int = 0
    #: directory from which it was read; None for one to be written
    place: SafePath | None = None
    #: workers whose update rules have a state in it
    remembering: frozenset[int] = frozenset()
    #: (first, last) worker of the groups whose sub-masters have a state in it
    groups_remembering: frozenset[tuple[int, int]] = frozenset()


def fold_directory(run_directory: Path, trial: int, fold: int) -> SafePath:
    """Return the directory in which a fold keeps its checkpoints, its weights, its history."""
    return SafePath(run_directory) / f"trials/{trial:04d}/fold{fold}"


def of_message(path: str) -> SafePath:
    """Return a folder of a fold, which a message names by its whole path, `RUN/trials/0007/fold0/checkpoint-3`."""
    run, trials, inside = path.rpartition("/trials/")
    return SafePath(Path(run)) / f"trials/{inside}" if trials else SafePath(Path(path))


def save_weights(directory: SafePath, weights: np.ndarray, state: np.ndarray) -> None:
    """Write `weights.npz` of a finished fold: weights and float model state, both float32 vectors."""
    make_directory(directory)
    with atomic_path(directory / WEIGHTS_NAME) as path, path.open("wb") as file:
        np.savez(file, weights=weights, state=state)


def load_weights(directory: SafePath) -> tuple[np.ndarray, np.ndarray]:
    """Return (weights, state) as `save_weights` wrote them; CheckpointError if they cannot be read.

    Before the fold has finished, the first of the two is both, as the last checkpoint has the best ones, and the
    second is empty.
    """
    path = directory / WEIGHTS_NAME
    if not path.exists() and (latest := load_latest(directory)) is not None:
        return latest.arrays.get("best", latest.arrays["central"]), np.empty(0, np.float32)
    arrays = _read_arrays(path)
    if {name: (array.ndim, array.dtype) for name, array in arrays.items()} != _WEIGHTS:
        found = ", ".join(f"{name} {array.dtype}{array.shape}" for name, array in arrays.items())
        raise CheckpointError(f"`{path}` must hold two float32 vectors, {' and '.join(_WEIGHTS)}. Received: {found}.")
    return arrays["weights"], arrays["state"]


def begin(directory: SafePath, epoch: int) -> SafePath:
    """Create and return a folder to which workers write; `save` makes it a checkpoint, `abandon` removes it."""
    temporary = directory / f".checkpoint-{epoch}.{uuid.uuid4().hex[:12]}"
    make_directory(directory)
    temporary.mkdir()
    return temporary


def abandon(temporary: SafePath | None) -> None:
    """Remove a folder of `begin`."""
    if temporary is not None:
        with suppress(OSError):
            temporary.remove()


def save_state(temporary: SafePath, workers: int | range, state: Mapping[str, Any]) -> dict[str, Any]:
    """Write the state of an update rule to a folder of `begin`; return name -> fingerprint for `save`.

    Args:
        temporary: folder of `begin`.
        workers: number of the worker that has the state; for a sub-master the numbers of its workers.
        state: arrays and numbers by name; without any, no file is written.
    """
    if not state:
        return {}
    path = temporary / _state_file(workers)
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **state)
    return {path.name: _synced(path)}


def load_state(place: SafePath, workers: int | range) -> dict[str, Any] | None:
    """Return the state that `save_state` wrote for the same `workers`, scalars as Python numbers; None without it."""
    path = place / _state_file(workers)
    if not path.exists():
        return None
    arrays = _read_arrays(path)
    return {name: array if array.ndim else array.item() for name, array in arrays.items()}


def _state_file(workers: int | range) -> str:
    return f"worker-{workers}.npz" if isinstance(workers, int) else f"group-{workers[0]}-{workers[-1]}.npz"


def save(
    directory: SafePath,
    checkpoint: Checkpoint,
    temporary: SafePath | None = None,
    files: Mapping[str, Any] | None = None,
) -> SafePath:
    """Write a checkpoint, remove the older ones; return its directory.

    Args:
        directory: folder that holds the checkpoints of the fold.
        checkpoint: without a place.
        temporary: folder of `begin`, if workers have written to it.
        files: name -> fingerprint of the files that they have written.
    """
    inside = f"-{checkpoint.n_samples_inside}" if checkpoint.n_samples_inside else ""
    place = directory / f"checkpoint-{checkpoint.epoch}{inside}"
    temporary = temporary or begin(directory, checkpoint.epoch)
    try:
        with (temporary / "master.npz").open("wb") as file:
            np.savez(file, allow_pickle=False, **checkpoint.arrays)
        moment = {"epoch": checkpoint.epoch, "n_samples_inside": checkpoint.n_samples_inside}
        (temporary / "master.json").write_bytes(json.dumps({**moment, **checkpoint.master}).encode())
        for number, state in checkpoint.workers.items():
            (temporary / f"worker-{number}.json").write_bytes(json.dumps(state).encode())
        own = [path for path in temporary.iterdir() if path.name not in (files or {})]
        manifest = {**{path.name: _synced(path) for path in own}, **(files or {})}
        manifest_path = temporary / "manifest.json"
        manifest_path.write_bytes(with_checksum({"epoch": checkpoint.epoch, "files": manifest}).encode())
        sync(manifest_path)
        sync(temporary)
        place.remove()
        temporary.replace(place)
        sync(directory)
    finally:
        abandon(temporary)
    for saved_at, path in _found(directory):
        if saved_at < (checkpoint.epoch, checkpoint.n_samples_inside):
            abandon(path)
    return place


def load_latest(directory: SafePath) -> Checkpoint | None:
    """Return the newest valid checkpoint in `directory`; invalid ones are skipped with a warning."""
    for _, path in _found(directory):
        try:
            return load(path)
        except CheckpointError as error:
            logger.warning("skipped a checkpoint: %s", error)
    return None


def load(place: SafePath) -> Checkpoint:
    """Return the checkpoint at `place`; CheckpointError unless it is valid as a whole."""
    try:
        files = _read_manifest(place)
        for name, expected in files.items():
            if (place / name).stat().st_size != expected["size"] or _fingerprint(place / name) != expected:
                raise CheckpointError(f"`{place / name}` does not agree with its manifest")
        arrays = _read_arrays(place / "master.npz")
        if arrays.get("best", arrays["central"]).shape != arrays["central"].shape:
            raise CheckpointError(f"`{place}` holds best weights of another shape than its weights")
        master = parse_object((place / "master.json").read_bytes(MOST_BYTES))
        parts = [part for name in sorted(files) if (part := _PART.fullmatch(name))]
        workers = {
            int(part[1]): parse_object((place / part[0]).read_bytes(MOST_BYTES)) for part in parts if part[2] == "json"
        }
        return Checkpoint(
            epoch=master.pop("epoch"),
            n_samples_inside=master.pop("n_samples_inside", 0),
            arrays=arrays,
            master=master,
            workers=workers,
            place=place,
            remembering=frozenset(int(part[1]) for part in parts if part[2] == "npz") & workers.keys(),
            groups_remembering=frozenset((int(part[3]), int(part[4])) for part in parts if part[3]),
        )
    except CheckpointError:
        raise
    except Exception as error:  # zip, zlib and npy readers raise a dozen kinds
        raise CheckpointError(f"`{place}` cannot be read: {error}") from error


def remove_all(directory: SafePath) -> None:
    """Remove every checkpoint in `directory`, including those that crashes have left half written."""
    with suppress(OSError):
        for path in [path for _, path in _found(directory)] + directory.glob(".checkpoint-*"):
            path.remove()


def _found(directory: SafePath) -> list[tuple[tuple[int, int], SafePath]]:
    """Return ((epochs, further samples), directory) for each directory named like a checkpoint, the newest first."""
    matches = ((_NAME.fullmatch(path.name), path) for path in directory.glob("checkpoint-*"))
    return sorted((((int(match[1]), int(match[2] or 0)), path) for match, path in matches if match), reverse=True)


def _read_manifest(place: SafePath) -> dict[str, Any]:
    """Return name -> fingerprint of the files of a checkpoint; CheckpointError if a name is missing or foreign."""
    text = (place / "manifest.json").read_bytes()
    files: dict[str, Any] = without_checksum(text, _FIRST_MANIFEST)["files"]
    missing = _MASTER_FILES - files.keys()
    if "crc" not in parse_object(text):
        # Only the folder shows if a name has been lost, as the manifest names every file of it.
        missing |= {path.name for path in place.iterdir()} - {"manifest.json", *files}
    if missing:
        raise CheckpointError(f"`{place}` has a manifest without {', '.join(sorted(missing))}")
    if foreign := [name for name in files if not _PART.fullmatch(name)]:
        raise CheckpointError(f"`{place}` has a manifest with {foreign[0]!r}, which is no file of a checkpoint")
    return files


def _read_arrays(path: SafePath) -> dict[str, np.ndarray]:
    """Return the arrays of an archive by name; CheckpointError if it is damaged anywhere."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            # First: NumPy reads as many bytes as a header says, without a look at the checksum of the rest.
            if damaged := archive.zip.testzip():
                raise ValueError(f"the checksum of {damaged} does not agree")
            for member in archive.zip.infolist():
                with archive.zip.open(member) as array:
                    _check_array(array, member)
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # zip, zlib and npy readers raise a dozen kinds
        raise CheckpointError(f"`{path}` cannot be read: {' '.join(str(error).split())}") from error


def _check_array(file: IO[bytes], member: zipfile.ZipInfo) -> None:
    """Raise ValueError unless `file`, a member of an archive, is one whole array of numbers, or a text."""
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError(f"{member.filename} is of another format")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    is_known = dtype.kind in "biuf" or (dtype.kind == "U" and not shape)
    if not is_known or math.prod(shape) * dtype.itemsize != member.file_size - file.tell():
        raise ValueError(f"{member.filename} is not the array of its header, {dtype} of shape {shape}")


def _synced(path: SafePath) -> dict[str, Any]:
    """Return the fingerprint of a file that has just been written, once the file is on disk."""
    sync(path)
    return _fingerprint(path)


def _fingerprint(path: SafePath) -> dict[str, Any]:
    data = path.read_bytes(MOST_BYTES)
    return {"size": len(data), "crc32": f"{zlib.crc32(data):08x}"}
