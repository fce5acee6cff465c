"""Reporter process: follows a journal and updates `results.csv` and `summary.json`.

`python -m nnlo_opt.app.reporting.follow RUN_DIRECTORY PID` writes both files at most once a second while the journal
grows, and once more when it reads a byte from standard input, or its parent PID dies. The end of standard input is not
enough: a child left behind by an objective keeps it open. Writing a long table takes tens of milliseconds, too long for
the coordinator's message loop. After a byte it also writes the page `report.html`, which takes up to a second; the
libraries are imported during the search. The process also removes weights not kept by `--keep-weights`, which can be
slow on a network file system.
"""

import hashlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, ClassVar

from nnlo_opt.app.reporting.page import wrote_page
from nnlo_opt.app.reporting.page_data import prepare
from nnlo_opt.app.reporting.results import write_results
from nnlo_opt.core.base.errors import UnreadableEventError
from nnlo_opt.core.base.pulse import PULSE
from nnlo_opt.core.base.records import without_collection
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.trials.events import Event
from nnlo_opt.core.trials.journal import LineBlocks, damaged, decode_line, decode_lines, run_of
from nnlo_opt.core.trials.kept_weights import WeightKeeper
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME
from nnlo_opt.engine.runtime.environment import (
    THREAD_VARIABLES,
    module_command,
    start_helper,
    wait_or_kill,
    without_mpi,
)

INTERVAL_S = 1.0
#: time limit for the page in seconds; exit code if everything but the page was written
PAGE_S, WITHOUT_PAGE = 10.0, 3
#: seconds of waiting for the last reports after which the user is told why
SLOW_S = 1.0


class JournalFollower:
    """Applies the events that were appended to a journal since the last call of `read`.

    The file is reopened for each call, because otherwise a network file system does not show what another machine
    wrote. A line counts once its newline is there. A file that was replaced by another journal or has become shorter is
    read again from the start, with a new ledger. A copy that goes on, as at a new term of jobs that share the run, is
    read from where the last one ended.

    Args:
        path: the journal.
        observe: called with each event and the ledger that has applied it.
    """

    def __init__(self, path: Path, observe: Callable[[Event, Ledger], None] | None = None) -> None:
        self._path = SafePath.of(path)
        self._observe = observe
        #: device and inode of the file that was read
        self._place = (0, 0)
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget all events; the next `read` starts from the first line."""
        self.ledger = Ledger()
        #: number of journal lines applied so far, and of their bytes
        self.n_events = self._n_bytes = 0
        #: of these bytes
        self._digest = hashlib.sha256()
        #: events that the last call of `read` applied
        self.new: list[Event] = []
        self._run = ""

    def read(self) -> bool:
        """Apply the new complete lines; return True if there were any.

        Raises:
            OSError: the file cannot be read.
            ValueError: a line is invalid; the lines before it are applied, and the next call starts with it.
            JournalError: the event of a valid line cannot be read.
        """
        with self._path.open("rb") as file:
            about = os.fstat(file.fileno())
            is_same = (about.st_dev, about.st_ino) == self._place and about.st_size >= self._n_bytes
            if not is_same and not self._goes_on_in(file):
                self.begin_anew()
            self._place = about.st_dev, about.st_ino
            file.seek(self._n_bytes)
            self.new, n_before = [], self.n_events
            with without_collection():
                for lines in LineBlocks(file):
                    self._take(lines)
        return self.n_events > n_before

    def _take(self, lines: Sequence[bytes]) -> None:
        events: Iterable[Event]
        if not self.n_events:
            self._run = run_of(lines[0])
        try:
            events = decode_lines(self.n_events, lines, self._run)
        except (ValueError, TypeError):  # one by one, to apply those before the invalid line
            events = self._singly(lines)
        for event, line in zip(events, lines, strict=True):
            self.ledger.replay([event])
            self.new.append(event)
            self.n_events += 1
            self._n_bytes += len(line) + 1
            self._digest.update(line + b"\n")
            if self._observe is not None:
                self._observe(event, self.ledger)

    def _goes_on_in(self, file: IO[bytes]) -> bool:
        """Return True if a file begins with the bytes that were read."""
        found, n_left = hashlib.sha256(), self._n_bytes
        while n_left and (part := file.read(min(n_left, 2**20))):
            found.update(part)
            n_left -= len(part)
        return not n_left and found.digest() == self._digest.digest()

    def _singly(self, lines: Sequence[bytes]) -> Iterator[Event]:
        for seq, line in enumerate(lines, self.n_events):
            try:
                yield decode_line(seq, line, self._run)
            except UnreadableEventError as error:
                raise damaged(str(self._path), seq, error) from error


class Reporter:
    """The coordinator's handle on the reporter process; one that cannot start counts as failed.

    Args:
        run_directory: directory of the run, with the journal.
        arguments: further arguments of the process.
    """

    #: module that the process runs
    module: ClassVar[str] = "nnlo_opt.app.reporting.follow"
    #: standard error of the process; by default only its exit code shows a failure
    errors: ClassVar[int | None] = subprocess.DEVNULL
    #: None if it could not be started
    _process: subprocess.Popen[bytes] | None = None

    def __init__(self, run_directory: Path, *arguments: str) -> None:
        command = module_command(self.module, str(run_directory), str(os.getpid()), *arguments)
        one_thread = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}
        with suppress(OSError):
            self._process = start_helper(command, without_mpi(one_thread), stdin=subprocess.PIPE, stderr=self.errors)

    def ask(self) -> None:
        """Ask the process to handle the last events and exit; returns at once. Idempotent."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended, or was asked
            self._process.stdin.write(b"\n")
            self._process.stdin.close()

    def finish(self, timeout_s: float = 60.0, is_slow: Callable[[], None] | None = None) -> bool:
        """Let the reporter write the last reports; return True if it wrote them in time, with or without the page.

        Args:
            timeout_s: longest wait in seconds, after which the reporter is killed (also on an exception).
            is_slow: called if the reports are not written within `SLOW_S`.
        """
        self.ask()
        if self._process is None:
            return False
        try:
            with PULSE.unwatched():
                if is_slow is not None and not self._ends_within(SLOW_S):
                    is_slow()
                status = wait_or_kill(self._process, timeout_s)
        finally:
            self.end()
        return status in (0, WITHOUT_PAGE, -signal.SIGALRM)

    def _ends_within(self, seconds: float) -> bool:
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self._process.returncode is not None

    def end(self) -> bool:
        """Kill the process; return True if it was still running, or never started."""
        if self._process is None:
            return True
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it was asked, or has ended
            self._process.stdin.close()
        if self._process.poll() is not None:
            return False
        self._process.kill()
        self._process.wait()
        return True

    @property
    def has_page(self) -> bool:
        """True if the reporter has exited and written the page, too."""
        return self._process is not None and self._process.returncode == 0


def rounds(parent: int) -> Iterator[bool]:
    """Yield every `INTERVAL_S` seconds; True for the last round, after a byte or the end of standard input.

    The death of the process `parent` also ends the rounds.
    """
    over = False
    while not over:
        over = bool(select.select([sys.stdin], [], [], INTERVAL_S)[0]) or os.getppid() != parent
        yield over


def follow(run_directory: Path, parent: int) -> None:
    """Update the reports of `run_directory` until a byte or the end of standard input, or the death of `parent`."""
    follower = JournalFollower(run_directory / JOURNAL_NAME)
    keeper = WeightKeeper(run_directory)
    is_behind = follower.read()
    for over in rounds(parent):
        is_behind |= follower.read()
        prepare(follower.ledger)
        if is_behind or over:
            try:
                write_results(run_directory, follower.ledger)
                is_behind = False
            except OSError:
                # A full disk may be temporary, and the coordinator reports it. A failure at the end shows in the exit
                # code.
                if over:
                    sys.exit(1)
                continue
            if n_best := follower.ledger.settings.keep_weights:
                with suppress(OSError):
                    for path in keeper.surplus(follower.ledger, n_best):
                        path.remove()
    if os.getppid() == parent:
        signal.setitimer(signal.ITIMER_REAL, PAGE_S)  # kills this process, whatever the page is waiting for
        if not wrote_page(run_directory, follower.ledger):
            sys.exit(WITHOUT_PAGE)


if __name__ == "__main__":
    try:
        follow(Path(sys.argv[1]), int(sys.argv[2]))
    except (OSError, ValueError):
        sys.exit(1)  # the run is gone or damaged: the coordinator reports it, and writes the reports if it can
