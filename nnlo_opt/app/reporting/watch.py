"""Live page of a run in a terminal, or lines in a pipe, read from the run directory only."""

import os
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from nnlo_opt.app.reporting import status_lines as texts
from nnlo_opt.app.reporting.follow import JournalFollower
from nnlo_opt.app.reporting.jobs import blocks_text, standing_text, trials_text
from nnlo_opt.app.reporting.lines import ProgressLines, TrainingLines
from nnlo_opt.app.reporting.status import Status, progress_of, status_of
from nnlo_opt.app.reporting.words import counted, duration_text
from nnlo_opt.core.base.clock import Clock, SystemClock
from nnlo_opt.core.base.errors import ConfigurationError, printable
from nnlo_opt.core.coordinator.instructions import SearchPlan
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.journal import load_events
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME
from nnlo_opt.core.trials.run_lock import may_be_at_work
from nnlo_opt.core.trials.run_state import RunState

#: seconds to wait for another start of an inactive, unfinished run; and for the first start
GRACE_S, BEGIN_S = 60.0, 300.0
#: consecutive reads that may fail: on a network file system files may be missing or incomplete for a moment
MOST_FAILED = 10
#: width from which running folds have bars; most lines for the best trial, and for reasons of failures; minimum rows
#: for the last ends
_WITH_BARS, _MOST_BEST, _MOST_REASONS, _LEAST_ENDS = 64, 3, 3, 3
#: state of a run or a trial -> its style
_STYLES = {"running": "green", "finished": "green", "failed": "red", "dead": "red", "interrupted": "yellow"}

#: state of a job -> its style
_JOB_STYLES = {"leads": "bold", "left": "dim", "expelled": "red"}


class RunWatch:
    """Polls a run; read-only.

    Args:
        run: the run directory.
        observe: called with each event and the ledger that has applied it.
        clock: clock of this machine.
    """

    def __init__(
        self, run: Path, observe: Callable[[ev.Event, Ledger], None] | None = None, clock: Clock | None = None
    ) -> None:
        self._run = run
        self._clock = clock or SystemClock()
        self._follower = JournalFollower(run / JOURNAL_NAME, observe)
        #: number of consecutive failed reads
        self._n_failed = 0
        #: True until the whole journal has been read once
        self.is_behind = True
        #: time when the run was last seen active; None if never
        self._alive_at_s: float | None = None
        #: True if nothing more is expected
        self.is_over = False
        #: last status read; None before the first
        self._seen: Status | None = None

    def look(self) -> Status:
        """Return the current status of the run, or the previous one if its journal cannot be read at the moment.

        Raises:
            ConfigurationError: the journal could not be read `MOST_FAILED` times in a row.
            JournalError: it is damaged.
        """
        # Check this first, because a process ends after its last event.
        now_s, at_work = self._clock.monotonic_s(), may_be_at_work(self._run)
        if self._read() or self._seen is None:
            self._seen = status_of(self._follower.ledger, self._run, self._clock.unix_s(), at_work=at_work)
        state = self._seen.state
        is_alive = at_work and not state.is_over
        if is_alive or (self._alive_at_s is None and state is RunState.WAITING):
            self._alive_at_s = now_s
        grace_s = BEGIN_S if state is RunState.WAITING else GRACE_S
        is_given_up = self._alive_at_s is None or now_s - self._alive_at_s > grace_s
        self.is_over = state is RunState.FINISHED or (not is_alive and is_given_up)
        return self._seen

    def _read(self) -> bool:
        """Read what is new; return True if successful."""
        try:
            self._follower.read()
        except (OSError, ValueError) as error:
            if isinstance(error, FileNotFoundError) and not self._follower.n_events:
                return True  # it has not begun
            self._n_failed += 1
            if isinstance(error, ValueError):  # another file, or a page missing on a network file system
                self._follower.begin_anew()
                self.is_behind = True
                if self._n_failed >= MOST_FAILED:
                    load_events(self._run / JOURNAL_NAME)  # raises, with what is damaged
            elif self._n_failed >= MOST_FAILED:
                raise ConfigurationError(
                    f"A run directory must stay in its place while it is watched. Received: `{self._run}`, whose "
                    f"journal cannot be read any more ({error.strerror or error}). Watch it where it is now."
                ) from None
            return False
        self._n_failed, self.is_behind = 0, False
        return True


class Page:
    """Page about a run that adapts to any width and height; every row is one line.

    Args:
        status: status of the run.
    """

    def __init__(self, status: Status) -> None:
        self._status = status

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yield the rows of the page."""
        rows = [*self._head(options.max_width, ascii_only=options.ascii_only)]
        jobs = self._jobs((options.height or sys.maxsize) // 4)
        reasons = [
            Text(line, "red")
            for failure in self._status.failures[:_MOST_REASONS]
            for line in _wrapped(texts.failure_text(failure), options.max_width, 2)
        ]
        n_free = (options.height or sys.maxsize) - len(rows) - sum(len(part) + 1 for part in (jobs, reasons) if part)
        running, ended = self._running(options), self._ended()
        n_free -= 2 * (bool(running) + bool(ended))
        n_running = max(2, n_free - min(_LEAST_ENDS, len(ended)))
        if len(running) > n_running + 1:
            n_more = len(running) - n_running
            running = [*running[:n_running], Text(f"… and {n_more} more", "dim")]
        ended = ended[: max(2, n_free - len(running) + 1)]
        for part in (jobs, running, ended, reasons):
            rows += [Text(), *part] * bool(part)
        for row in rows:
            row.highlight_regex("━+", "green")
            row.no_wrap, row.overflow = True, "ellipsis"
        yield from rows

    def _head(self, width: int, *, ascii_only: bool) -> Iterator[Text]:
        status = self._status
        yield Text.assemble((status.run, "bold"), f"  {status.kind}")
        yield Text(texts.state_text(status), _STYLES.get(status.state, ""))
        if status.state is RunState.WAITING:
            return
        progress = texts.progress_text(status.progress, status.left_s)
        yield Text(texts.with_bar(status.progress.share, progress, width, ascii_only))
        yield Text(texts.counts_text(status))
        for line in _wrapped(f"best {texts.best_text(status)}", width, _MOST_BEST):
            yield Text(line, "bold")
        if len(curve := status.curve) > 1:
            first, last = (f"{figure:.4g}" for figure in (curve[0], curve[-1]))
            drawn = texts.curve_text(curve, width - len(first) - len(last) - 2, ascii_only=ascii_only)
            yield Text.assemble(first, " ", (drawn, "cyan"), " ", last)
        if status.losses:
            yield Text(status.losses, "red")

    def _jobs(self, most: int) -> list[Text]:
        """Return the jobs of a shared run with a header, in at most `most` lines if there are many; else nothing."""
        jobs, n_shown = self._status.jobs, max(2, most - 2)
        rows = [["job", "ranks", "blocks", "trial", "time", "host"]]
        for job in jobs[:n_shown]:
            blocks = blocks_text(job["blocks"]).split()[1]
            cells = [str(job["job"]), str(job["n_ranks"]), blocks, trials_text(job["running"])]
            rows.append([*cells, duration_text(job["here_s"]), standing_text(job)])
        more = [Text(f"… and {len(jobs) - n_shown} more", "dim")] * (len(jobs) > n_shown)
        return _table(rows, [_JOB_STYLES.get(job["state"], "") for job in jobs[:n_shown]]) + more

    def _running(self, options: ConsoleOptions) -> list[Text]:
        """Return the running folds with a header; empty if there are none."""
        folds = self._status.running
        has_folds, has_bars = any(fold["fold"] for fold in folds), options.max_width >= _WITH_BARS
        rows = [["trial", "block", *["fold"] * has_folds, "epoch", "figure", "time", ""]]
        for fold in folds:
            share = fold["epoch"] / fold["n_epochs"] if fold["n_epochs"] else None
            drawn = "" if share is None else texts.bar(share, 20, ascii_only=options.ascii_only) * has_bars
            cells = [str(fold[name]) for name in ("trial", "block", *["fold"] * has_folds)]
            cells += [texts.epoch_text(fold), texts.figure_text_of(fold["figure_of_merit"])]
            rows.append([*cells, duration_text(fold["running_s"]), drawn])
        return _table(rows, ["" for _ in folds])

    def _ended(self) -> list[Text]:
        """Return the last ended trials with a header; empty if there are none."""
        rows = [["trial", "figure", "ago", "state"]]
        for trial in self._status.ended:
            how = trial["state"] + f": {' '.join(trial['reason'].split())}" * bool(trial["reason"])
            figure = texts.figure_text_of(trial["figure_of_merit"])
            rows.append([str(trial["trial"]), figure, duration_text(trial["ago_s"]), how])
        return _table(rows, [_STYLES.get(trial["state"], "") for trial in self._status.ended])


def _wrapped(text: str, width: int, most: int) -> list[str]:
    """Wrap text to at most `most` lines; an ellipsis marks omitted text."""
    wrap = textwrap.TextWrapper(width, subsequent_indent="     ", max_lines=most, placeholder=" …")
    return wrap.wrap(text)


def _table(rows: list[list[str]], styles: list[str]) -> list[Text]:
    """Return rows in columns, the first row as header; empty without others."""
    lines = zip(texts.aligned(rows), ["dim", *styles], strict=True)
    return [Text(line, style) for line, style in lines] if styles else []


# ---------------------------------------------------------------- in a terminal, or in a pipe


class Screen(Console):
    """Console that escapes control characters in text, but not rich's own colours and cursor movements."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(file=getattr(stream, "whole", stream), highlight=False, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else printable(text), style, control)


def watch(run: Path, interval_s: float) -> RunState:
    """Show a run until it is over; return its final state.

    A terminal shows a page that adapts to its size, a pipe or a file gets one line per change.
    """
    if sys.stdout.isatty() and os.environ.get("TERM") != "dumb":
        return _show_page(RunWatch(run), interval_s)
    return _Changes(run).print(interval_s)


def _show_page(watched: RunWatch, interval_s: float) -> RunState:
    console = Screen(sys.stdout)
    # Get the size before showing a page: a change in between triggers another one.
    status, size = watched.look(), console.size
    if not watched.is_over:
        with Live(Page(status), console=console, screen=True, auto_refresh=False) as live:
            while not watched.is_over:
                until_s = time.monotonic() + interval_s
                # A library's threads would swallow SIGWINCH.
                while time.monotonic() < until_s and console.size == size:
                    time.sleep(min(interval_s, 0.2))
                status, size = watched.look(), console.size
                live.update(Page(status), refresh=True)
    console.print(Page(status))
    return status.state


class _Changes:
    """Lines about a run: its state, one line per change like the driver's, then its final state."""

    def __init__(self, run: Path, sleep: Callable[[float], None] = time.sleep) -> None:
        self._watched = RunWatch(run, self._observe)
        self._sleep = sleep
        #: prints the events of the last start; None before the first start
        self._lines: ProgressLines | TrainingLines | None = None
        #: lines of the last read, printed afterwards, so that printing errors are not mistaken for reading errors
        self._said: list[str] = []

    def print(self, interval_s: float) -> RunState:
        """Print the lines until the run is over; return its final state."""
        status = self._watched.look()
        print(*texts.status_lines(status), sep="\n", flush=True)
        while not self._watched.is_over:
            self._sleep(interval_s)
            status = self._watched.look()
            said, self._said = self._said, []
            if self._watched.is_over:
                said += texts.status_lines(status)
            if said:
                print(*said, sep="\n", flush=True)
        return status.state

    def _observe(self, event: ev.Event, ledger: Ledger) -> None:
        if isinstance(event, ev.RunStarted):
            self._lines = _lines_of(ledger, self._say)
            self._say(f"Start {len(ledger.sessions)}: {counted(event.n_ranks, 'rank')}.")
        elif self._lines is not None:
            self._lines.observe(event, ledger)

    def _say(self, text: str, style: str = "") -> None:
        if not self._watched.is_behind:
            self._said.append(text)


def _lines_of(ledger: Ledger, say: Callable[..., None]) -> ProgressLines | TrainingLines:
    training, n_fold = ledger.identity.training, ledger.identity.n_fold
    if ledger.is_training:
        return TrainingLines(say, training, n_fold)
    n_all, direction = progress_of(ledger).n_all or 0, ledger.direction
    most = ledger.settings.plan.max_attempts
    plan = SearchPlan(num_iterations=n_all, n_fold=n_fold, direction=direction, max_attempts=most)
    return ProgressLines(say, plan, ledger)


class SearchBar:
    """Progress line of a search in a script or notebook; it stays visible after `close`."""

    def __init__(self) -> None:
        self._console = Console()
        self._live = Live(console=self._console, auto_refresh=False)
        #: display handle in a notebook, where rich would need ipywidgets; None in a terminal
        self._output: Any = None
        self._shown = ""
        #: True if something else was drawn in place of the line
        self._is_covered = False
        if self._console.is_jupyter:
            self._output = import_module("IPython.display").display({"text/plain": ""}, raw=True, display_id=True)
        else:
            self._live.start()

    def show(self, ledger: Ledger, now_s: float) -> None:
        """Draw the line, `now_s` seconds after the first start."""
        n_failed, ascii_only = ledger.n_by_state()["failed"], "utf" not in self._console.encoding
        failed = f" | {n_failed} failed" * bool(n_failed)
        line = texts.bottom_line(ledger, now_s, self._console.width - 1 - len(failed), ascii_only=ascii_only)
        if line + failed == self._shown:
            return
        self._shown = line + failed
        self._draw(self._shown)

    def wait_for(self, what: str) -> None:
        """Show what is being waited for in place of the line."""
        self._is_covered = True
        self._draw(f"{what} …" if "utf" in self._console.encoding else f"{what} ...")

    def _draw(self, text: str) -> None:
        if self._output is not None:
            self._output.update({"text/plain": printable(text)}, raw=True)
        else:
            self._live.update(Text(printable(text), no_wrap=True), refresh=True)

    def close(self) -> None:
        """Finish the line, leaving it as it is."""
        if self._is_covered:
            self._draw(self._shown)
        self._live.stop()
        if not self._console.is_terminal and self._output is None:
            self._console.print()
