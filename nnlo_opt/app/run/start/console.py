"""Output for the user, on the terminal and in `--log-file`."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from nnlo_opt.app.reporting.terminal import BottomLine, fitted, open_terminal, styled, terminal_width
from nnlo_opt.core.base.clock import Clock, SystemClock
from nnlo_opt.core.base.errors import ConfigurationError, printable
from nnlo_opt.core.base.files import regular
from nnlo_opt.core.base.pulse import PULSE
from nnlo_opt.engine.runtime.log import wait_until_read

#: seconds between two attempts to write to a full disk, and between two lines that report them
ROOM_S, SAY_S = 2.0, 60.0
#: seconds of waiting before the first line that gives the reason; factor for each further pause, up to `SAY_S`
WAIT_S, GROWTH = 3.0, 3.0


class Console:
    """Prints lines; survives the loss of the terminal or the log file."""

    def __init__(self, *, prints: bool = True, quiet: bool = False, warn: Callable[[str], None] | None = None) -> None:
        """Create a console.

        Args:
            prints: if False, lines go only to the log file.
            quiet: the same until `end_quiet`.
            warn: also receives every error; None: nothing does.
        """
        self._prints, self._warn = prints, warn
        self._is_quiet = quiet
        #: the log file; None before `keep` and after `close`
        self._log: TextIO | None = None
        #: status line below all others; None without a terminal or outside of a run
        self._bottom: BottomLine | None = None

    def keep(self, path: Path) -> None:
        """From now on append every line to this file; ConfigurationError if it cannot be written."""
        try:
            place = regular(path) if path.exists() else path
            self._log = place.open("a", buffering=1, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise ConfigurationError(
                f"`--log-file` must be writable. Received: `{path}` ({error.strerror or error}); choose another."
            ) from None

    def say(self, text: str, stream: TextIO | None = None, style: str = "") -> None:
        """Print a line to `stream`, by default standard output; `style`: see `app.reporting.terminal`.

        Lines to another stream are errors, and are printed even if the console is quiet.
        """
        text = printable(text)
        if self._prints and (stream or not self._is_quiet):
            if stream:
                wait_until_read(sys.stdout)  # mpirun may reorder the two streams
            with suppress(OSError, ValueError):  # user code may have closed it
                stream = stream or sys.stdout
                shown = styled(fitted(text, stream), style, stream)
                if self._bottom is not None and terminal_width(stream) is not None:
                    shown = self._bottom.above(shown)
                print(shown, file=stream, flush=True)
        if self._log is not None:
            with suppress(OSError):
                self._log.write(text + "\n")
        if stream and self._warn is not None:
            self._warn(text)

    def remark(self, sentence: str) -> None:
        """Show a remark: in a script as a warning, in a command as a line."""
        (self._warn or self.say)(sentence)

    def show_bottom(self, text: Callable[[int], str]) -> None:
        """Show a status line below all others on a terminal; `text`: returns it for a width."""
        if self._prints and not self._is_quiet and (terminal := open_terminal(sys.stdout)) is not None:
            self._bottom = BottomLine(terminal, text)

    def hide_bottom(self) -> None:
        """Remove the status line, if there is one."""
        bottom, self._bottom = self._bottom, None
        if bottom is not None:
            bottom.close()

    def end_quiet(self) -> None:
        """From now on print every line: the run has ended."""
        self._is_quiet = False

    @contextmanager
    def waiting(self, awaited: Callable[[], str], first_s: float = WAIT_S) -> Iterator[None]:
        """Print now and then what is `awaited` while the code inside runs, for example an import.

        Uses a thread, which only prints: it sends no messages and does not call MPI.
        """
        ended, began_s = threading.Event(), time.monotonic()

        def tell() -> None:
            pause_s = first_s
            while not ended.wait(pause_s):
                self.say(f"{awaited()}, {time.monotonic() - began_s:.0f} s so far.")
                pause_s = min(GROWTH * pause_s, SAY_S)

        thread = threading.Thread(target=tell, daemon=True)
        if self._prints:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            if self._prints:
                thread.join()

    def close(self) -> None:
        """Remove the status line, and close the log file."""
        self.hide_bottom()
        log, self._log = self._log, None
        if log is not None:
            with suppress(OSError):
                log.close()


@dataclass(slots=True)
class WaitForSpace:
    """Reports a full disk and waits: messages must not be sent before the event behind them is on disk."""

    place: Path
    say: Callable[[str, TextIO], None]
    clock: Clock = field(default_factory=SystemClock)
    sleep: Callable[[float], None] = time.sleep
    #: monotonic times of the last line, and of the last attempt, in seconds
    _said_at_s: float = field(default=-SAY_S, init=False)
    _tried_at_s: float = field(default=-SAY_S, init=False)

    def __call__(self, error: OSError) -> None:
        """Wait before each further attempt to write."""
        PULSE.ticks += 1
        now_s = self.clock.monotonic_s()
        is_new = now_s - self._tried_at_s > 2 * ROOM_S
        if is_new or now_s - self._said_at_s >= SAY_S:
            self._said_at_s = now_s
            self.say(
                f"`{self.place}` cannot be written ({error.strerror or error}): free some space. The search waits and "
                f"tries again every {ROOM_S:g} s; ranks continue to train. Nothing is lost, even if you end the job "
                "and resume it later.",
                sys.stderr,
            )
        self.sleep(ROOM_S)
        self._tried_at_s = self.clock.monotonic_s()
