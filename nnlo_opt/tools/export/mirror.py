"""Mirror of a search: a process that keeps the files of another tool up to date while the search runs.

`python -m nnlo_opt.tools.export.mirror RUN_DIRECTORY PID TOOL` follows the journal as the reporter does, but in a
process of its own: a slow tool delays neither the search nor its reports. The process gives way to the ranks of its
node. If it fails, it says so in one line and ends; the search continues, and `nnlo-opt export` writes the same files
later.
"""

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from nnlo_opt.app.reporting.follow import INTERVAL_S, JournalFollower, Reporter, rounds
from nnlo_opt.app.reporting.terminal import make_output_printable
from nnlo_opt.app.run.afterwards.mirrors import LAST_S, Mirrors
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME
from nnlo_opt.tools.export.exporter import make_exporter, require, tool_named

#: added to the niceness of the process
NICENESS = 10


class Mirror(Reporter):
    """Handle by which the coordinator starts and ends the process of a mirror.

    Args:
        run_directory: directory of the run, in which the files of the tool lie.
        tool: name of the tool.
    """

    module = "nnlo_opt.tools.export.mirror"
    errors = None  # those of this process: a mirror says there why it has failed

    def __init__(self, run_directory: Path, tool: str) -> None:
        super().__init__(run_directory, tool)
        #: name of the tool
        self.tool = tool

    def finish(self, timeout_s: float = LAST_S, is_slow: Callable[[], None] | None = None) -> bool:
        """Have the mirror take in the last events; return False if it was killed, as it took too long.

        A mirror that has failed has said so.
        """
        super().finish(timeout_s, is_slow)
        return self._process is not None and self._process.returncode >= 0


class ProcessMirrors(Mirrors):
    """Mirrors that are processes."""

    def require(self, tool: str) -> None:
        require(tool, f"`--mirror {tool}`")

    def start(self, run_directory: Path, tool: str) -> Mirror:
        return Mirror(run_directory, tool)


def mirror(run_directory: Path, parent: int, tool: str) -> None:
    """Keep the files of a tool up to date until standard input has a byte or ends, or `parent` dies."""
    threading.Thread(target=_end_after, args=(parent,), name="end", daemon=True).start()
    follower = JournalFollower(run_directory / JOURNAL_NAME)
    exporter = make_exporter(tool, SafePath(run_directory) / tool_named(tool).target, run_directory.name)
    for _ in rounds(parent):
        if follower.read():
            exporter.take(follower.new, follower.ledger)


def _end_after(parent: int) -> None:
    """End this process `LAST_S` after the process `parent`, which else ends it itself, whatever the tool does."""
    while os.getppid() == parent:
        time.sleep(INTERVAL_S)
    signal.alarm(LAST_S)


if __name__ == "__main__":
    os.nice(NICENESS)
    make_output_printable()
    try:
        mirror(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
    except Exception as error:
        command = f"`nnlo-opt export {sys.argv[1]} --to {sys.argv[3]} --overwrite`"
        why = f"The mirror for {sys.argv[3]} has ended, and the run goes on: {error!r}."
        sys.exit(f"{why} {command} writes it when the run is over.")
