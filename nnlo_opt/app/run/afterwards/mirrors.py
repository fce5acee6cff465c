"""Interface to mirrors of a search in the files of other tools (`--mirror`); a command passes them to its run."""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol, TextIO

from nnlo_opt.core.trials.run_directory import RunDirectory

#: names of the tools that can follow a search
TOOLS = ("optuna", "tensorboard")
#: most seconds that a mirror may take after the search
LAST_S = 30


class Mirror(Protocol):
    """Updates the files of another tool in a separate process."""

    #: name of the tool
    tool: str

    def ask(self) -> None:
        """Ask the mirror to process the last events and end; return at once."""

    def finish(self, timeout_s: float) -> bool:
        """Wait for the end of the mirror; return False if it took too long and was killed."""


class Mirrors:
    """Factory of mirrors; this one has none, for a user's script, which has no `--mirror`."""

    def require(self, tool: str) -> None:
        """Raise ConfigurationError if the package of a tool is not installed."""
        raise NotImplementedError(tool)

    def start(self, run_directory: Path, tool: str, term: int = 0) -> Mirror:
        """Start the mirror of a run for a tool; `term`: of the coordinator, in a run that jobs share."""
        raise NotImplementedError(tool)


NO_MIRRORS = Mirrors()


def ask_mirrors(mirrors: Sequence[Mirror], left_s: float | None) -> float:
    """Ask the mirrors to end; return the monotonic time of their deadline.

    Args:
        left_s: remaining seconds of this process; None without a limit.
    """
    for mirror in mirrors:
        mirror.ask()
    return time.monotonic() + (LAST_S if left_s is None else min(LAST_S, left_s / 4))


def end_mirrors(
    mirrors: Sequence[Mirror], directory: RunDirectory, until_s: float, say: Callable[[str, TextIO], None]
) -> None:
    """Wait for the mirrors after `ask_mirrors`; kill them at the deadline, a monotonic time."""
    for mirror in mirrors:
        if not mirror.finish(max(0.0, until_s - time.monotonic())):
            command = f"`nnlo-opt export {directory.shown} --to {mirror.tool} --overwrite`"
            say(f"The mirror for {mirror.tool} is behind: {command} brings it up to date.", sys.stderr)
