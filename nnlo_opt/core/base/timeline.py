"""Interface for measuring spans of time on a rank; a plain `Timeline` records nothing.

With `--timeline` a rank has an `engine.runtime.timeline.RankTimeline`.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any


class _NoSpan:
    """Span that measures nothing, faster than `nullcontext`; a single stateless object serves all."""

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any, /) -> None: ...


_NO_SPAN = _NoSpan()


class Timeline:
    """Timeline of a run without `--timeline`: records nothing."""

    #: True if events are recorded; check it before computing an expensive argument
    keeps: bool = False
    #: directory of the run, set by `open`; always None if nothing is recorded
    directory: Path | None = None

    def span(self, name: str, /, category: str = "compute", **arguments: Any) -> AbstractContextManager[None]:
        """Return a context manager that measures its block; `arguments` (numbers, short texts) are shown with it."""
        return _NO_SPAN

    def now(self) -> float:
        """Return the current time for `add`, in seconds since the timeline began."""
        return 0.0

    def add(self, name: str, since: float, /, *, track: str, category: str = "wait", **arguments: Any) -> None:
        """Add a span from `since` (a result of `now`) until now, for work that is not a `with` block.

        `track` must be separate from the rank's: spans of a track must not overlap, except nested ones.
        """

    def name(self, label: str) -> None:
        """Set the label of the rank in the timeline."""

    def open(self, run_directory: Path, first_rank: int = 0, job: str = "") -> None:
        """Set the run directory to write to; until then events are only kept in memory.

        In a run that jobs share, `first_rank` is the number of world rank 0 among the ranks of all jobs, and `job` its
        job in words.
        """

    def flush(self) -> None:
        """Write the rank's events at the end of an epoch; returns at once if the last write is recent."""

    def close(self) -> None:
        """Write the rank's events for the last time."""


#: timeline of runs without `--timeline`
NO_TIMELINE = Timeline()
