"""Unrecorded results: folds that finished after the coordinator died.

The master of each fold atomically writes a file with a checksum to `unrecorded/` of the run. The next start adds the
results to the journal, so that no finished fold is trained again, and removes the files.
"""

import logging
from dataclasses import asdict
from pathlib import Path

from nnlo_opt.core.base.files import atomic_write, with_checksum, without_checksum
from nnlo_opt.core.base.records import checked
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials.trial import UnrecordedFold

logger = logging.getLogger(__name__)

FOLDER = "unrecorded"


def keep(run: Path, fold: UnrecordedFold) -> None:
    """Write `fold` to the run directory `run`."""
    path = SafePath(run) / FOLDER / f"assignment-{fold.assignment:06d}.json"
    path.parent.mkdir(exist_ok=True)
    atomic_write(path, with_checksum(asdict(fold)))


def read(run: Path) -> tuple[UnrecordedFold, ...]:
    """Return all results in `run`; damaged ones are skipped with a warning, and their folds trained again."""
    folds = []
    for path in (SafePath(run) / FOLDER).glob("assignment-*.json"):
        try:
            folds.append(checked(without_checksum(path.read_bytes()), UnrecordedFold))
        except (OSError, ValueError, TypeError) as error:
            logger.warning("skipped `%s`: %s", path, error)
    return tuple(folds)


def forget(run: Path) -> None:
    """Remove all results, once the journal has them."""
    (SafePath(run) / FOLDER).remove()
