"""What is written of a start of a run, in its journal and in config.json."""

import hashlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from typing import Any, TextIO

import nnlo_opt
from nnlo_opt.errors import NnloError
from nnlo_opt.run.options import Options
from nnlo_opt.trials.events import RunStarted
from nnlo_opt.trials.run_directory import RunDirectory

#: packages that take part in a run
_PACKAGES = ("mpi4py", "numpy", "scipy", "scikit-optimize", "optuna", "keras", "tensorflow", "h5py")


def settings_of(program: str, options: Options) -> dict[str, Any]:
    """What a start was asked for, and with which versions, as plain data."""
    return {
        "command_line": [program, *options.command_line],
        "versions": versions(),
        "hyper_opt": options.search.algorithm,
        "search": options.search.to_json(),
        "plan": asdict(options.plan),
        "block_size": options.block_size,
    }


def record_start(directory: RunDirectory, started: RunStarted, say: Callable[[str, TextIO], None]) -> None:
    """Have the journal begin a start, and write config.json; NnloError where the journal cannot be written."""
    directory.ledger.apply(started)
    try:
        directory.journal.append([started])
    except OSError as error:
        raise NnloError(f"`{directory.journal.path}` cannot be written ({error.strerror or error}).") from error
    fingerprint = hashlib.sha256(json.dumps(started.identity["search_space"], sort_keys=True).encode()).hexdigest()
    try:
        directory.write_config({**started.settings, "search_space_fingerprint": fingerprint, **started.identity})
    except OSError as error:
        say(f"config.json could not be written ({error.strerror or error}); the journal has it all.", sys.stderr)


def versions() -> dict[str, str]:
    """Versions of what takes part, without importing it."""
    found = {"nnlo_opt": nnlo_opt.__version__, "python": sys.version.split()[0]}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
