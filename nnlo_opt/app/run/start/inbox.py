"""Inbox of a run: files by which a command on any machine asks its coordinator for something.

A command writes a request to a file of its own in `inbox/`, whole or not at all. A thread of the coordinator's process
looks there once a second, as a slow file system must not delay messages. It removes a file when the consequence of the
request is in the journal. So a crash loses no point: the next start finds the file, and only removes it if a trial has
the point by then. A request to stop is for the process that held the run when it was made: no later one obeys it.
"""

import sys
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from nnlo_opt.app.reporting.words import counted, point_text
from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.files import atomic_write, make_directory
from nnlo_opt.core.base.records import Reader, Record
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.coordinator import instructions as ins
from nnlo_opt.core.search.start_points import check_start_points, holder_of
from nnlo_opt.core.space.space import Point, Space
from nnlo_opt.core.trials.events import Event, TrialSuggested
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.owner import this_process
from nnlo_opt.core.trials.run_directory import INBOX_NAME

#: seconds between two looks into the inbox
LOOK_S = 1.0
#: reason of an end that a user has asked for
STOPPED = "stopped by `nnlo-opt stop`"


class Request(Record, tag_field="request"):
    """Base of all requests."""


class Enqueue(Request):
    """Trial of this point, or of a part of it, which the search completes."""

    point: dict[str, Any]


class Stop(Request):
    """End of a trial, or of this start of the run if there is no `trial`.

    `owner`: the process that holds the run, as `run.owner` names it; `finish`: trials under way come to their end.
    """

    owner: dict[str, Any]
    trial: int | None = None
    finish: bool = False


_READER = Reader[Request](Request.__subclasses__())


def submit(run: Path, request: Request) -> SafePath:
    """Write a request to the inbox of a run; return its file, which is there until the request is fulfilled."""
    path = SafePath(run) / INBOX_NAME / f"{time.time_ns()}-{uuid.uuid4().hex[:12]}.json"
    make_directory(path.parent)
    atomic_write(path, request.to_json() + "\n")
    return path


def points_waiting(run: Path) -> Iterator[Point]:
    """Yield the points in the inbox of a run, the oldest first."""
    for path in _requests(SafePath(run) / INBOX_NAME):
        with suppress(OSError, ValueError, TypeError):
            request = _READER.read(path.read_bytes())
            if isinstance(request, Enqueue):
                yield request.point


def _requests(folder: SafePath) -> list[SafePath]:
    """Return the requests in a folder, the oldest first; a file that begins with a dot is unfinished."""
    return folder.glob("[!.]*.json")


class Inbox:
    """Requests to a run under way as events of its coordinator, which calls this object; an observer of its journal.

    Args:
        run: the run directory.
        space: the search space; None for a training, which takes no points.
        ledger: the trials so far.
        grace_s: seconds in which trials under way have to write a checkpoint if the start is to end.
        say: prints a line for a person.
    """

    def __init__(
        self, run: Path, space: Space | None, ledger: Ledger, grace_s: float, say: Callable[[str, TextIO | None], None]
    ) -> None:
        self._folder = SafePath(run) / INBOX_NAME
        self._space = space
        self._ledger = ledger
        self._grace_s = grace_s
        self._say = say
        #: names of the files that were read; for `look` alone
        self._known = set[str]()
        #: files that were read, which `look` appends; names of files that it removes next
        self._arrived: deque[tuple[str, bytes]] = deque()
        self._removed: deque[str] = deque()
        #: names of files whose consequences are written when the coordinator asks the next time
        self._handled: list[str] = []
        #: name of a file -> function that returns True for a point with its values, until a trial has one
        self._waiting: dict[str, Callable[[Point], bool]] = {}
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="inbox", daemon=True)
        with suppress(OSError):
            self.look()  # for the points that were enqueued before this start

    def start(self) -> None:
        """Look for requests from now on."""
        self._thread.start()

    def _watch(self) -> None:
        while not self._is_closed.wait(LOOK_S):
            with suppress(OSError):  # the disk may come back
                self.look()

    def look(self) -> None:
        """Remove files of requests that are fulfilled, and read new ones; no other method touches files."""
        while self._removed:
            (self._folder / self._removed.popleft()).unlink(missing_ok=True)
        for path in _requests(self._folder):
            if path.name not in self._known:
                with suppress(OSError):  # it is looked at again
                    self._arrived.append((path.name, path.read_bytes()))
                    self._known.add(path.name)

    def __call__(self) -> list[ins.CoordinatorEvent]:
        """Return the requests since the last call; the consequences of earlier ones are written by now."""
        self._removed.extend(self._handled)
        self._handled.clear()
        events = []
        while self._arrived:
            name, text = self._arrived.popleft()
            try:
                event = self._event_of(name, _READER.read(text))
            except (ValueError, TypeError, ConfigurationError) as error:
                self._say(
                    f"`{self._folder / name}` is left alone, as it is no request to this run: {error}", sys.stderr
                )
                continue
            if event is not None:
                events.append(event)
        return events

    def _event_of(self, name: str, request: Request) -> ins.CoordinatorEvent | None:
        """Return the event of a request; None if there is nothing left to do."""
        if isinstance(request, Enqueue):
            return self._point_of(name, request)
        assert isinstance(request, Stop)
        self._handled.append(name)
        if request.owner != this_process():
            return None
        if request.trial is None:
            self._say(f"`nnlo-opt stop`: {'no trial begins any more' if request.finish else 'all trials stop'}.", None)
            return ins.Drain(reason=STOPPED) if request.finish else ins.Preempt(reason=STOPPED, grace_s=self._grace_s)
        return ins.StopTrial(trial=request.trial, reason=STOPPED)

    def _point_of(self, name: str, request: Enqueue) -> ins.Enqueue | None:
        if self._space is None:
            raise ConfigurationError("a training has one point")
        point = check_start_points(self._space, [request.point])[0]
        holds = holder_of(self._space, point)
        if any(holds(trial.point) for trial in self._ledger.trials):
            self._handled.append(name)
            return None
        self._waiting[name] = holds
        self._say(f"Enqueued: {point_text(point)}.", None)
        return ins.Enqueue(point=point)

    def observe(self, event: Event, ledger: Ledger) -> None:
        """Take in that a trial has begun, which may be the one that somebody waits for."""
        if isinstance(event, TrialSuggested):
            self._fulfil(event.point)

    def decline(self, point: Point, why: str) -> None:
        """Take in that the search will not suggest an enqueued point."""
        self._fulfil(point)
        self._say(f"Not tried: {why}", sys.stderr)

    def _fulfil(self, point: Point) -> None:
        for name in [name for name, holds in self._waiting.items() if holds(point)]:
            del self._waiting[name]
            self._removed.append(name)

    def close(self) -> None:
        """Remove the files of fulfilled requests for the last time; a second call does nothing."""
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        if self._waiting:
            what = counted(len(self._waiting), "enqueued point")
            self._say(f"Not tried yet: {what}, in `{self._folder}` for the next start.", None)
        self._removed.extend(self._handled)
        if self._thread.ident is not None:
            self._thread.join(5 * LOOK_S)  # of a file system that hangs, the thread may be left behind
        if not self._thread.is_alive():
            with suppress(OSError):
                self.look()
