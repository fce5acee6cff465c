"""Results of folds that no journal has: written by their masters where the coordinator has died.

One file a fold in `unrecorded/` of the run, whole or not at all, with a checksum: the next start takes them into the
journal, so that no finished fold is trained again, and removes them.
"""

import json
import logging
import shutil
import zlib
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nnlo_opt.files import atomic_write
from nnlo_opt.trials.trial import FoldResult, UnrecordedFold

logger = logging.getLogger(__name__)

DIRECTORY_NAME = "unrecorded"


def keep(run: Path, fold: UnrecordedFold) -> None:
    """Write `fold` down in the run directory `run`."""
    data = asdict(fold)
    path = run / DIRECTORY_NAME / f"assignment-{fold.assignment:06d}.json"
    path.parent.mkdir(exist_ok=True)
    atomic_write(path, json.dumps({"crc": _checksum(data), **data}) + "\n")


def read(run: Path) -> tuple[UnrecordedFold, ...]:
    """All that is kept in `run`; what is damaged is passed over with a warning: its fold is trained again."""
    folds = []
    for path in sorted((run / DIRECTORY_NAME).glob("assignment-*.json")):
        try:
            data = json.loads(path.read_text())
            if data.pop("crc") != _checksum(data):
                raise ValueError("its checksum does not agree")
            data["result"] = FoldResult(**data["result"])
            folds.append(UnrecordedFold(**data))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            logger.warning("passed over `%s`: %s", path, error)
    return tuple(folds)


def forget(run: Path) -> None:
    """Remove what is kept: the journal has it."""
    shutil.rmtree(run / DIRECTORY_NAME, ignore_errors=True)


def _checksum(data: dict[str, Any]) -> str:
    return f"{zlib.crc32(json.dumps(data, sort_keys=True).encode()):08x}"
