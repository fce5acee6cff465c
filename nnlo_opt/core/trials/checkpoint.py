"""Checkpoint of a fold, verified as a whole.

    checkpoint-3/master.npz     arrays of the master: central weights, model state, optimizer state, best weights
    checkpoint-3/master.json    everything else of the master: epoch, version, history
    checkpoint-3/worker-1.json  state of worker 1 at the fence: data position, discrete model state
    checkpoint-3/worker-1.npz   state of its update rule, if any; written by the worker
    checkpoint-3/group-1-3.npz  state of the sub-master of workers 1 to 3; written by the sub-master
    checkpoint-3/manifest.json  names and checksums of the files above (`core.trials.manifest`)
    checkpoint-3-1200/          the same, 1200 samples into the next epoch; `worker-1.npz` also has the model state

The master creates a hidden directory, completes it after the workers have written, and renames it last.
"""

import json
import math
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, NotRequired, TypedDict

import numpy as np

from nnlo_opt.core.base.errors import CheckpointError
from nnlo_opt.core.base.files import atomic_path, make_directory, parse_object
from nnlo_opt.core.base.records import Count, Elapsed, Frozen, checked
from nnlo_opt.core.base.safe_path import MOST_BYTES, SafePath
from nnlo_opt.core.trials.manifest import abandon, begin, complete, newest, read_manifest, synced, verify

_MASTER_FILES = {"master.npz", "master.json"}
WEIGHTS_NAME, HISTORY_NAME = "weights.npz", "history.json"
#: name -> (dimensions, type) of the arrays of `weights.npz`
_WEIGHTS = {"weights": (1, np.dtype(np.float32)), "state": (1, np.dtype(np.float32))}
#: file names allowed in a manifest: number and suffix of a worker; first and last worker of a group
_PART = re.compile(r"master\.(?:json|npz)|worker-(\d+)\.(json|npz)|group-(\d+)-(\d+)\.npz")


class _Master(TypedDict):
    """Fields of `master.json` that end up in the journal or the next checkpoint."""

    epoch: Count
    n_samples_inside: NotRequired[Count]
    n_samples: NotRequired[Count]
    version: NotRequired[Count]
    train_s: NotRequired[Elapsed]


class Checkpoint(Frozen):
    """State of a fold at a fence."""

    #: number of finished epochs
    epoch: int
    #: float32 vectors and optimizer state by name
    arrays: Mapping[str, np.ndarray]
    #: plain data
    master: Mapping[str, Any]
    #: worker number (from 1) -> plain data
    workers: Mapping[int, Mapping[str, Any]]
    #: training samples of the next epoch already trained; 0 between two epochs
    n_samples_inside: int = 0
    #: directory that it was read from; None for a new one
    place: SafePath | None = None
    #: workers with a saved state of the update rule
    remembering: frozenset[int] = frozenset()
    #: (first, last) worker of the groups with a saved state of the sub-master
    groups_remembering: frozenset[tuple[int, int]] = frozenset()


def fold_directory(run_directory: Path, trial: int, fold: int) -> SafePath:
    """Return the directory of a fold; `core.trials.attempts` tells where in it an attempt has its files."""
    return SafePath(run_directory) / f"trials/{trial:04d}/fold{fold}"


def of_message(path: str) -> SafePath:
    """Return a fold's folder from the full path in a message, `RUN/trials/0007/fold0/checkpoint-3`."""
    run, trials, inside = path.rpartition("/trials/")
    return SafePath(Path(run)) / f"trials/{inside}" if trials else SafePath(Path(path))


def save_weights(directory: SafePath, weights: np.ndarray, state: np.ndarray) -> None:
    """Write `weights.npz` of a finished fold: weights and float model state, both float32 vectors."""
    make_directory(directory)
    with atomic_path(directory / WEIGHTS_NAME) as path, path.open("wb") as file:
        np.savez(file, weights=weights, state=state)


def load_weights(directory: SafePath) -> tuple[np.ndarray, np.ndarray]:
    """Return (weights, state) as `save_weights` wrote them; CheckpointError if they cannot be read.

    Before the fold has finished, these are the best weights in the last checkpoint: weights and state in one vector,
    and an empty vector.
    """
    path = directory / WEIGHTS_NAME
    if not path.exists() and (latest := load_latest(directory)) is not None:
        return latest.arrays.get("best", latest.arrays["central"]), np.empty(0, np.float32)
    arrays = _read_arrays(path)
    if {name: (array.ndim, array.dtype) for name, array in arrays.items()} != _WEIGHTS:
        found = ", ".join(f"{name} {array.dtype}{array.shape}" for name, array in arrays.items())
        raise CheckpointError(f"`{path}` must hold two float32 vectors, {' and '.join(_WEIGHTS)}. Received: {found}.")
    return arrays["weights"], arrays["state"]


def save_state(temporary: SafePath, workers: int | range, state: Mapping[str, Any]) -> dict[str, Any]:
    """Write the state of an update rule to a folder of `begin`; return name -> fingerprint for `save`.

    Args:
        temporary: folder of `begin`.
        workers: number of the worker that has the state; for a sub-master the numbers of its workers.
        state: name -> array or number; if empty, no file is written.
    """
    if not state:
        return {}
    path = temporary / _state_file(workers)
    with path.open("wb") as file:
        np.savez(file, allow_pickle=False, **state)
    return {path.name: synced(path)}


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
        checkpoint: new checkpoint, without a place.
        temporary: folder of `begin`, if workers have written to it.
        files: name -> fingerprint of the files that they have written.
    """
    temporary = temporary or begin(directory, checkpoint.epoch)
    try:
        with (temporary / "master.npz").open("wb") as file:
            np.savez(file, allow_pickle=False, **checkpoint.arrays)
        moment = {"epoch": checkpoint.epoch, "n_samples_inside": checkpoint.n_samples_inside}
        (temporary / "master.json").write_bytes(json.dumps({**moment, **checkpoint.master}).encode())
        for number, state in checkpoint.workers.items():
            (temporary / f"worker-{number}.json").write_bytes(json.dumps(state).encode())
        own = [path for path in temporary.iterdir() if path.name not in (files or {})]
        fingerprints = {**{path.name: synced(path) for path in own}, **(files or {})}
        return complete(temporary, checkpoint.epoch, fingerprints, checkpoint.n_samples_inside)
    finally:
        abandon(temporary)


def load_latest(directory: SafePath) -> Checkpoint | None:
    """Return the newest valid checkpoint in `directory`; invalid ones are skipped with a warning."""
    return newest(directory, load)


def load(place: SafePath) -> Checkpoint:
    """Return the checkpoint at `place`; CheckpointError if any part of it is damaged."""
    try:
        files = read_manifest(place)["files"]
        if missing := _MASTER_FILES - files.keys():
            raise CheckpointError(f"`{place}` has a manifest without {', '.join(sorted(missing))}")
        if foreign := [name for name in files if not _PART.fullmatch(name)]:
            raise CheckpointError(f"`{place}` has a manifest with {foreign[0]!r}, which is not a file of a checkpoint")
        verify(place, files)
        arrays = _read_arrays(place / "master.npz")
        if arrays.get("best", arrays["central"]).shape != arrays["central"].shape:
            raise CheckpointError(f"`{place}` has best weights and weights of different shapes")
        master = parse_object((place / "master.json").read_bytes(MOST_BYTES))
        parts = [part for name in sorted(files) if (part := _PART.fullmatch(name))]
        workers = {
            int(part[1]): parse_object((place / part[0]).read_bytes(MOST_BYTES)) for part in parts if part[2] == "json"
        }
        checked(master, _Master)
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


def _read_arrays(path: SafePath) -> dict[str, np.ndarray]:
    """Return the arrays of an archive by name; CheckpointError if it is damaged anywhere."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            # Check first: NumPy trusts the header and does not verify the checksum of the rest.
            if damaged := archive.zip.testzip():
                raise ValueError(f"the checksum of {damaged} does not match")
            for member in archive.zip.infolist():
                with archive.zip.open(member) as array:
                    _check_array(array, member)
            return {name: archive[name] for name in archive.files}
    except Exception as error:  # zip, zlib and npy readers raise a dozen kinds
        raise CheckpointError(f"`{path}` cannot be read: {' '.join(str(error).split())}") from error


def _check_array(file: IO[bytes], member: zipfile.ZipInfo) -> None:
    """Raise ValueError unless `file`, a member of an archive, is one complete array of numbers, or text."""
    if np.lib.format.read_magic(file) != (1, 0):
        raise ValueError(f"{member.filename} has another format")
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    is_known = dtype.kind in "biuf" or (dtype.kind == "U" and not shape)
    if not is_known or math.prod(shape) * dtype.itemsize != member.file_size - file.tell():
        raise ValueError(f"{member.filename} is not the array of its header, {dtype} of shape {shape}")
