"""The reporter: a process of its own that follows a journal and keeps `results.csv` and `summary.json` up to date.

`python -m nnlo_opt.reporting.follow RUN_DIRECTORY` writes them at most once a second while the journal grows, and once
more when its standard input ends, which is also how it notices that the coordinator died. Writing a long table takes
tens of milliseconds, which the coordinator's message loop must not spend.
"""

import os
import select
import subprocess
import sys
from pathlib import Path

from nnlo_opt.reporting.results import write_results
from nnlo_opt.runtime.environment import module_command, without_mpi
from nnlo_opt.trials.journal import decode_line
from nnlo_opt.trials.ledger import Ledger
from nnlo_opt.trials.run_directory import JOURNAL_NAME

INTERVAL_S = 1.0


class JournalFollower:
    """Reads what was added to a journal since the last look."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self.ledger = Ledger()
        #: lines taken in
        self.n_events = 0
        self._tail = b""

    def read(self) -> bool:
        """Apply the new whole lines; -> whether there were any."""
        self._tail += self._file.read()
        *lines, self._tail = self._tail.split(b"\n")
        for line in lines:
            self.ledger.apply(decode_line(self.n_events, line))
            self.n_events += 1
        return bool(lines)


class Reporter:
    """The reporter's process, as the coordinator sees it."""

    def __init__(self, run_directory: Path) -> None:
        self._process = subprocess.Popen(
            module_command("nnlo_opt.reporting.follow", str(run_directory)),
            stdin=subprocess.PIPE,
            env=without_mpi(os.environ),
            start_new_session=True,
        )

    def finish(self, timeout_s: float = 60.0) -> bool:
        """Have it write everything and leave; -> whether it did."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return self._process.wait(timeout_s) == 0
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False


def follow(run_directory: Path) -> None:
    """Keep the reports of `run_directory` up to date until standard input ends."""
    follower = JournalFollower(run_directory / JOURNAL_NAME)
    over = is_behind = False
    while not over:
        over = bool(select.select([sys.stdin], [], [], INTERVAL_S)[0])
        is_behind |= follower.read()
        if is_behind or over:
            try:
                write_results(run_directory, follower.ledger)
                is_behind = False
            except OSError:
                # The disk may be full for a while, which the coordinator says. At the end it is told by our exit code.
                if over:
                    sys.exit(1)


if __name__ == "__main__":
    follow(Path(sys.argv[1]))
