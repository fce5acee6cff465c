"""Mirror of a search: a process that updates the files of another tool during the search.

`python -m nnlo_opt.tools.export.mirror RUN_DIRECTORY PID TOOL TERM` follows the journal like the reporter, but in a
separate process, so that a slow tool delays neither the search nor its reports. It has a low priority on its node. If
it fails, it prints one line and exits; the search continues, and `nnlo-opt export` can write the same files later.
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
    """The coordinator's handle on the process of a mirror.

    Args:
        run_directory: directory of the run, which also contains the files of the tool.
        tool: name of the tool.
        term: term of the coordinator, in a run that jobs share; else 0.
    """

    module = "nnlo_opt.tools.export.mirror"
    errors = None  # inherited, so that a mirror can report its failure

    def __init__(self, run_directory: Path, tool: str, term: int = 0) -> None:
        super().__init__(run_directory, tool, str(term))
        #: name of the tool
        self.tool = tool

    def finish(self, timeout_s: float = LAST_S, is_slow: Callable[[], None] | None = None) -> bool:
        """Let the mirror process the last events; return False if it took too long and was killed.

        A failed mirror has already reported its failure.
        """
        super().finish(timeout_s, is_slow)
        return self._process is not None and self._process.returncode >= 0


class ProcessMirrors(Mirrors):
    """Mirrors as separate processes."""

    def require(self, tool: str) -> None:
        require(tool, f"`--mirror {tool}`")

    def start(self, run_directory: Path, tool: str, term: int = 0) -> Mirror:
        return Mirror(run_directory, tool, term)


def mirror(run_directory: Path, parent: int, tool: str, term: int) -> None:
    """Update the files of a tool until a byte or the end of standard input, the death of `parent`, or a later term."""
    threading.Thread(target=_end_after, args=(parent,), name="end", daemon=True).start()
    follower = JournalFollower(run_directory / JOURNAL_NAME)
    exporter = make_exporter(tool, SafePath(run_directory) / tool_named(tool).target, run_directory.name)
    for _ in rounds(parent):
        if not follower.read():
            continue
        if follower.ledger.term > term:
            return  # the job that leads now has its own mirror of these files
        if follower.ledger.term < term:
            follower.begin_anew()  # the journal of this term cannot be seen yet
        else:
            exporter.take(follower.new, follower.ledger)


def _end_after(parent: int) -> None:
    """Kill this process `LAST_S` after the death of `parent`, whatever the tool does."""
    while os.getppid() == parent:
        time.sleep(INTERVAL_S)
    signal.alarm(LAST_S)


if __name__ == "__main__":
    os.nice(NICENESS)
    make_output_printable()
    try:
        mirror(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
    except Exception as error:
        command = f"`nnlo-opt export {sys.argv[1]} --to {sys.argv[3]} --overwrite`"
        why = f"The mirror for {sys.argv[3]} has ended, and the run continues: {error!r}."
        sys.exit(f"{why} {command} writes it when the run is over.")
