"""What a rank tells of its time: spans of a `Timeline`, which keeps nothing without `--timeline`.

With `--timeline` it is a `engine.runtime.timeline.RankTimeline`.
"""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any


class _NoSpan:
    """Span that measures nothing, faster than `nullcontext`; a single object serves all, as it has no state."""

    __slots__ = ()

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any, /) -> None: ...


_NO_SPAN = _NoSpan()


class Timeline:
    """Timeline of a run without `--timeline`, which keeps nothing."""

    #: True if events are kept; to be asked before an argument is computed at some cost
    keeps: bool = False
    #: directory of the run, from `open` on; always None if nothing is kept
    directory: Path | None = None

    def span(self, name: str, /, category: str = "compute", **arguments: Any) -> AbstractContextManager[None]:
        """Return a context manager that measures its block; `arguments` (numbers, short texts) are shown with it."""
        return _NO_SPAN

    def now(self) -> float:
        """Return the present time for `add`, in seconds since the timeline began."""
        return 0.0

    def add(self, name: str, since: float, /, *, track: str, category: str = "wait", **arguments: Any) -> None:
        """Add a span from `since` (`now` at its beginning) to the present, for work that is no `with` block.

        The span goes to a track of its own: spans of one track must lie one after another or inside each other.
        """

    def name(self, label: str) -> None:
        """Set the name of the rank in the picture."""

    def open(self, run_directory: Path) -> None:
        """Set the directory of the run to which the part is written; until then it is only kept in memory."""

    def flush(self) -> None:
        """Write the part at the end of an epoch, unless the last write is too recent; then the call is cheap."""

    def close(self) -> None:
        """Write the part for the last time."""


#: timeline of runs without `--timeline`
NO_TIMELINE = Timeline()
