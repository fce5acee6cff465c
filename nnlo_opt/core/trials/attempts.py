"""Folders of the attempts at a fold, with its checkpoints, weights and history.

    trials/0007/fold0/               of all attempts, unless several jobs share the run
    trials/0007/fold0/attempt-3-17/  of assignment 17, made in term 3

A job that was taken for gone may go on later, when another attempt at the fold is under way. Folders of their own let
it do so without harm: nobody reads what it writes. Each attempt takes the last checkpoint of those before it by a
rename, and a checkpoint is removed under another name only (`manifest`), so what has been taken is out of reach for
them.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, Self, TypeVar

from nnlo_opt.core.base.files import make_directory, sync
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials.checkpoint import HISTORY_NAME, WEIGHTS_NAME, fold_directory
from nnlo_opt.core.trials.manifest import remove_all
from nnlo_opt.core.trials.trial import AssignmentEnd, Trial

logger = logging.getLogger(__name__)

#: folders of attempts in the folder of a trial
_FOLDERS = ("fold*", "fold*/attempt-*")


class _Ordered(Protocol):
    """Order to run a fold, or to take part in it."""

    @property
    def trial(self) -> int: ...
    @property
    def fold(self) -> int: ...
    @property
    def term(self) -> int: ...
    @property
    def assignment(self) -> int: ...


class _Order(_Ordered, Protocol):
    """Order to run a fold, with the identities of its ended attempts, oldest first."""

    @property
    def before(self) -> list[tuple[int, int]]: ...


class _Placed(Protocol):
    """Checkpoint that was read."""

    @property
    def place(self) -> SafePath | None: ...
    def replaced(self, **changes: Any) -> Self: ...


_T = TypeVar("_T", bound=_Placed)


def attempt_directory(run_directory: Path, trial: int, fold: int, identity: tuple[int, int]) -> SafePath:
    """Return the folder of an attempt at a fold; `identity`: as `Assignment.identity`."""
    folder, (term, number) = fold_directory(run_directory, trial, fold), identity
    return folder / f"attempt-{term}-{number}" if term else folder


def ordered_directory(run_directory: Path, order: _Ordered) -> SafePath:
    """Return the folder of the attempt that `order` begins."""
    return attempt_directory(run_directory, order.trial, order.fold, (order.term, order.assignment))


def result_directory(run_directory: Path, trial: Trial, fold: int) -> SafePath:
    """Return the folder with the result of a fold: of its attempt that has finished, or else the last with a save."""
    attempts = [a for a in trial.assignments if a.fold == fold]
    finished = [a for a in attempts if a.end is AssignmentEnd.FINISHED]
    folders = [attempt_directory(run_directory, trial.number, fold, a.identity) for a in finished or reversed(attempts)]
    saved = (folder for folder in folders if len(folders) == 1 or folder.glob("checkpoint-*"))
    return next(saved, fold_directory(run_directory, trial.number, fold))


def left_in(trial_directory: SafePath, pattern: str) -> list[SafePath]:
    """Return the paths that match a pattern in the folders of all attempts at all folds of a trial."""
    return [path for folders in _FOLDERS for path in trial_directory.glob(f"{folders}/{pattern}")]


def take_over(run_directory: Path, order: _Order, find: Callable[[SafePath], _T | None]) -> _T | None:
    """Return the checkpoint from which the attempt of `order` continues, which is then in its folder; None without one.

    The last ended attempt with a valid checkpoint counts: an earlier one can only have a newer checkpoint if it has
    written it after its end.

    Args:
        run_directory: the run.
        order: order that begins the attempt.
        find: returns the newest valid checkpoint in a folder.
    """
    own = ordered_directory(run_directory, order)
    before = [attempt_directory(run_directory, order.trial, order.fold, identity) for identity in order.before]
    if (found := find(own)) is not None:
        return found
    for folder in reversed(before):
        while (found := find(folder)) is not None and found.place is not None:
            place = own / found.place.name
            try:
                make_directory(own)
                found.place.replace(place)
                sync(own)
            except OSError as error:
                if found.place.exists():
                    logger.warning("`%s` could not be moved to `%s`: %s", found.place, place, error)
                    return found
                continue  # its job is still at work, and has replaced it by a newer one
            for other in before:
                forget(other)
            return found.replaced(place=place)
    return None


def forget_others(run_directory: Path, trial: Trial, fold: int) -> None:
    """Remove what all attempts at an ended fold have left but the one that counts, also those of a lost journal."""
    folder, counts = fold_directory(run_directory, trial.number, fold), result_directory(run_directory, trial, fold)
    for attempt in (*folder.glob("attempt-*"), folder):
        if attempt != counts:
            forget(attempt)


def forget(attempt: SafePath) -> None:
    """Remove what an attempt has left that does not count, if possible."""
    remove_all(attempt)
    with suppress(OSError):
        (attempt / WEIGHTS_NAME).unlink(missing_ok=True)
        (attempt / HISTORY_NAME).unlink(missing_ok=True)
        attempt.rmdir()
