"""Checkpoints of a user's objective: every rank of the block saves its part.

trials/0007/fold0/checkpoint-3/rank-0/…      files of rank 0
trials/0007/fold0/checkpoint-3/rank-1/…      files of rank 1
trials/0007/fold0/checkpoint-3/manifest.json   names and checksums of all these files (`core.trials.manifest`)
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NotRequired, TypeAlias, TypedDict

from nnlo_opt.core.base.errors import CheckpointError, MisuseError
from nnlo_opt.core.base.records import Count, Elapsed, Frozen, Positive, checked
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

#: collective call: (name, this rank's contribution, function of all contributions on block rank 0) -> its result
Meet: TypeAlias = Callable[[str, Json, Callable[[list[Json]], Json]], Json]


class _Manifest(TypedDict):
    """Fields of a save's manifest that are read back."""

    epoch: Count
    train_s: Elapsed
    files: dict[str, Any]
    #: True if epochs are counted from 0; missing in older versions, which counted from 1
    counts_from_0: NotRequired[bool]
    #: number of this save in the fold; missing in older versions
    number: NotRequired[Positive]


class Save(Frozen):
    """Valid save of a trial."""

    place: SafePath
    #: epoch in the objective's own counting
    epoch: int
    #: number of the first epoch in that counting, 1 or 0
    first: int = 1
    #: seconds of the trial so far
    train_s: float = 0.0


def last_save(directory: SafePath) -> Save | None:
    """Return the last save in the folder of an attempt; None if there is none. Leftovers of a crash are removed."""

    def load(place: SafePath) -> Save:
        try:
            manifest = checked(read_manifest(place), _Manifest)
            verify(place, manifest["files"])
            save = Save(
                place=place,
                epoch=manifest["epoch"],
                first=1 - manifest.get("counts_from_0", False),
                train_s=manifest["train_s"],
            )
            if save.epoch < save.first:
                raise ValueError(f"its epoch is {save.epoch}")
            return save
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"`{place}` cannot be read: {error}") from error

    remove_unfinished(directory)
    return newest(directory, load, is_numbered=True)


@dataclass(kw_only=True)
class TrialCheckpoint:
    """Saves of a trial, to resume it after a crash, a pause or a preemption; an argument of the objective.

    At its start the objective loads what `folder` contains, if it is not None, and continues after `epoch`. After each
    epoch it calls `save`, then `report`.

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

    #: folder of the attempt
    _directory: SafePath = field(repr=False)
    #: rank in the block
    _rank: int = 0
    _meet: Meet = field(repr=False, default=lambda name, own, answer: answer([own]))
    #: seconds of the trial so far
    _train_s: Callable[[], float] = field(repr=False, default=lambda: 0.0)
    _last: Save | None = None
    #: how the trial counts its epochs, as known on block rank 0; for objectives of this package
    count: EpochCount = field(repr=False, default_factory=EpochCount)

    @property
    def epoch(self) -> int:
        """Epoch of the last save, in the objective's own counting; 0 if there is none."""
        return 0 if self._last is None else self._last.epoch

    @property
    def n_epochs(self) -> int:
        """Number of epochs up to the last save, counted from 1 as in the journal; 0 if there is none."""
        return 0 if self._last is None else self._last.epoch + 1 - self._last.first

    @property
    def folder(self) -> Path | None:
        """This rank's folder of the last save, read-only; None if there is none."""
        own = f"rank-{self._rank}"
        return next((folder for folder in self.folders if folder.name == own), None)

    @property
    def folders(self) -> list[Path]:
        """Folders of the last save, in the order of the ranks that wrote them; there may be more or fewer ranks now."""
        parts = [] if self._last is None else self._last.place.glob("rank-*")
        return [Path(str(part)) for part in sorted(parts, key=lambda part: int(part.name.removeprefix("rank-")))]

    def save(self, epoch: int, write: Callable[[Path], object]) -> None:
        """Save the state after an epoch; it replaces the last save once the parts of all ranks are on disk.

        Collective: every rank of the block must call it, if the trial runs on several; a missing rank blocks the
        others.

        Args:
            epoch: number of the epoch that has ended, from 1 or from 0.
            write: writes this rank's part to an empty folder.

        Raises:
            TrialError: the epoch is not a whole number from 0, or differs between ranks, or the disk is full. It is
                raised on every rank, and the trial has failed.
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
        self._last = Save(place=self._directory / saved, epoch=epoch, first=int(not self.count.is_from_0))

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
    """Flush every file of a rank's part to disk; return name -> fingerprint."""
    files = {}
    for path in part.walk():
        if path.is_dir():
            path.sync()
        else:
            files[path.below(part.parent)] = synced(path)
    return files
