"""Mirrors of a search in the files of other tools (`--mirror`), which a command hands to its run."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TextIO

from nnlo_opt.core.trials.run_directory import RunDirectory

#: names of the tools that can follow a search
TOOLS = ("optuna", "tensorboard")
#: most seconds that a mirror lives on when the search is over
LAST_S = 30


class Mirror(Protocol):
    """Updates the files of another tool in a separate process."""

    #: name of the tool
    tool: str

    def ask(self) -> None:
        """Have the mirror take in the last events and end; return at once."""

    def finish(self, timeout_s: float) -> bool:
        """Wait for the end of the mirror; return False if it was killed, as it took too long."""


class Mirrors:
    """All mirrors that there are; here none, as for a user's own script, which has no `--mirror`."""

    def require(self, tool: str) -> None:
        """Raise ConfigurationError if the package of a tool is not installed."""
        raise NotImplementedError(tool)

    def start(self, run_directory: Path, tool: str) -> Mirror:
        """Start the mirror of a run for a tool."""
        raise NotImplementedError(tool)


NO_MIRRORS = Mirrors()


def ask_mirrors(mirrors: Sequence[Mirror], left_s: float | None) -> float:
    """Ask the mirrors to end; return the monotonic time until which they may live on.

    Args:
        left_s: seconds that this process has; None without a limit.
    """
    for mirror in mirrors:
        mirror.ask()
    return time.monotonic() + (LAST_S if left_s is None else min(LAST_S, left_s / 4))


def end_mirrors(
    mirrors: Sequence[Mirror], directory: RunDirectory, until_s: float, say: Callable[[str, TextIO], None]
) -> None:
    """Wait for the mirrors, which were asked to end, until a monotonic time at which they are killed."""
    for mirror in mirrors:
        if not mirror.finish(max(0.0, until_s - time.monotonic())):
            command = f"`nnlo-opt export {directory.shown} --to {mirror.tool} --overwrite`"
            say(f"The mirror for {mirror.tool} is behind: {command} brings it up to date.", sys.stderr)
