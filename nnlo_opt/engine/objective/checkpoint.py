"""Checkpoint of a trial that is a call of a user's objective: every rank of the block saves its own part.

trials/0007/fold0/checkpoint-3/rank-0/…      what rank 0 has written
trials/0007/fold0/checkpoint-3/rank-1/…      what rank 1 has written
trials/0007/fold0/checkpoint-3/manifest.json   names and checksums of all these files (`core.trials.manifest`)
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypeAlias, TypedDict

from nnlo_opt.core.base.errors import CheckpointError, MisuseError
from nnlo_opt.core.base.records import Count, Elapsed, Positive, checked
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.comm.messages import Json
from nnlo_opt.core.trials.manifest import (
    abandon,
    begin,
    complete,
    newest,
    read_manifest,
    remove_unfinished,
    synced,
    verify,
)
from nnlo_opt.engine.objective.epochs import EpochCount, whole_epoch
from nnlo_opt.engine.runtime.process import code_of_user

#: collective call: (its name, what this rank brings, what block rank 0 makes of what all bring) -> what it has made
Meet: TypeAlias = Callable[[str, Json, Callable[[list[Json]], Json]], Json]


class _Manifest(TypedDict):
    """Fields of the manifest of a save that are read again."""

    epoch: Count
    train_s: Elapsed
    files: dict[str, Any]
    #: True if the first epoch is 0; older versions wrote none, and knew only a first epoch of 1
    counts_from_0: NotRequired[bool]
    #: of this save among all of the fold; older versions wrote none
    number: NotRequired[Positive]


@dataclass(frozen=True)
class Save:
    """Save of a trial that is valid as a whole."""

    place: SafePath
    #: as the code of the trial counts
    epoch: int
    #: number of its first epoch, 1 or 0
    first: int = 1
    #: seconds that the trial had taken
    train_s: float = 0.0


def last_save(directory: SafePath) -> Save | None:
    """Return the last save in the folder of a fold; None if there is none. What a crash has left is removed."""

    def load(place: SafePath) -> Save:
        try:
            manifest = checked(read_manifest(place), _Manifest)
            verify(place, manifest["files"])
            save = Save(place, manifest["epoch"], 1 - manifest.get("counts_from_0", False), manifest["train_s"])
            if save.epoch < save.first:
                raise ValueError(f"its epoch is {save.epoch}")
            return save
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"`{place}` cannot be read: {error}") from error

    remove_unfinished(directory)
    return newest(directory, load, is_numbered=True)


@dataclass(kw_only=True)
class TrialCheckpoint:
    """Saves of a trial, from which it goes on after a crash, a pause or a preemption.

    >>> def objective(parameters, report, checkpoint):
    ...     n = 0 if checkpoint.folder is None else int((checkpoint.folder / "n").read_text())
    ...     for epoch in range(checkpoint.epoch + 1, 4):
    ...         n += epoch
    ...         checkpoint.save(epoch, lambda folder: (folder / "n").write_text(str(n)))
    ...         report(epoch, n)
    ...     return n
    >>> nnlo_opt.optimize(objective, {"x": Real(0, 1)}, num_iterations=2).best.figure_of_merit
    6.0
    """

    #: folder of the fold
    _directory: SafePath = field(repr=False)
    #: rank in the block
    _rank: int = 0
    _meet: Meet = field(repr=False, default=lambda name, own, answer: answer([own]))
    #: seconds that the trial has taken by now
    _train_s: Callable[[], float] = field(repr=False, default=lambda: 0.0)
    _last: Save | None = None
    #: how the trial counts its epochs, as block rank 0 knows; for objectives of this package
    count: EpochCount = field(repr=False, default_factory=EpochCount)

    @property
    def epoch(self) -> int:
        """Epoch of the last save, as the trial counts; 0 if there is none."""
        return 0 if self._last is None else self._last.epoch

    @property
    def n_epochs(self) -> int:
        """Number of epochs up to the last save, as the journal counts from 1; 0 if there is none."""
        return 0 if self._last is None else self._last.epoch + 1 - self._last.first

    @property
    def folder(self) -> Path | None:
        """This rank's part of the last save; None if there is none."""
        own = f"rank-{self._rank}"
        return next((folder for folder in self.folders if folder.name == own), None)

    @property
    def folders(self) -> list[Path]:
        """Parts of the last save in the order of the ranks that have written them, which may be more or fewer now."""
        parts = [] if self._last is None else self._last.place.glob("rank-*")
        return [Path(str(part)) for part in sorted(parts, key=lambda part: int(part.name.removeprefix("rank-")))]

    def save(self, epoch: int, write: Callable[[Path], object]) -> None:
        """Save the state after an epoch; it replaces the last save once the parts of all ranks are safe on the disk.

        Collective: every rank of the block, if the trial runs on several.

        Args:
            epoch: number of the epoch that has ended, from 1 or from 0.
            write: writes this rank's part to an empty folder.

        Raises:
            TrialError: the epoch is no whole number from 0, ranks have given several, or the disk has taken no more. On
                every rank: the trial has failed.
        """
        epoch = whole_epoch(epoch)
        temporary = self._directory / self._meet("checkpoint.save", epoch, self._begin)
        try:
            part = temporary / f"rank-{self._rank}"
            part.mkdir()
            with code_of_user():
                write(Path(str(part)))
            saved = self._meet(
                "checkpoint.save (end)", _safe_files(part), lambda parts: self._complete(temporary, epoch, parts)
            )
        finally:
            if not self._rank:
                abandon(temporary)
        self._last = Save(self._directory / saved, epoch, int(not self.count.is_from_0))

    def _begin(self, epochs: list[Json]) -> str:
        if other := next((n for n in epochs if n != epochs[0]), None):
            raise MisuseError(f"all ranks must save the same epoch; received: {epochs[0]} and {other}")
        self.count.number(epochs[0])
        return begin(self._directory, epochs[0]).name

    def _complete(self, temporary: SafePath, epoch: int, parts: list[dict[str, Any]]) -> str:
        files = {name: found for part in parts for name, found in part.items()}
        train_s, from_0 = self._train_s(), self.count.is_from_0
        return complete(temporary, epoch, files, is_numbered=True, train_s=train_s, counts_from_0=from_0).name


def _safe_files(part: SafePath) -> dict[str, Any]:
    """Return name -> fingerprint of every file of a rank's part, once it is on the disk."""
    files = {}
    for path in part.walk():
        if path.is_dir():
            path.sync()
        else:
            files[path.below(part.parent)] = synced(path)
    return files
