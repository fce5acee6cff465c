"""Inbox of a run: files with requests to its coordinator, written by commands on any machine.

A command writes each request atomically to a new file in `inbox/`. A thread of the coordinator's process checks the
folder once a second, because a slow file system must not delay messages. It removes a file when the effect of the
request is in the journal. So a crash does not lose points: the next start finds the file, and removes it only if a
trial already has the point. A request to stop applies only to the process that held the run when it was made, or to
any job that had joined by then.
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

#: seconds between two checks of the inbox
LOOK_S = 1.0
#: reason for the end after a user's request
STOPPED = "stopped by `nnlo-opt stop`"


class Request(Record, tag_field="request"):
    """Base of all requests."""


class Enqueue(Request):
    """Request for a trial of this point; the search completes a partial one."""

    point: dict[str, Any]


class Stop(Request):
    """Request to end a trial, or this start of the run if `trial` is None.

    `owner`: the process that holds the run, from `run.owner`, or `job`, the number of the last job that has joined it;
    `finish`: let running trials finish.
    """

    owner: dict[str, Any]
    trial: int | None = None
    finish: bool = False


_READER = Reader[Request](Request.__subclasses__())


def submit(run: Path, request: Request) -> SafePath:
    """Write a request to the inbox of a run; return its file, which exists until the request is fulfilled."""
    path = SafePath(run) / INBOX_NAME / f"{time.time_ns()}-{uuid.uuid4().hex[:12]}.json"
    make_directory(path.parent)
    atomic_write(path, request.to_json() + "\n")
    return path


def points_waiting(run: Path) -> Iterator[Point]:
    """Yield the points in the inbox of a run, oldest first."""
    for path in _requests(SafePath(run) / INBOX_NAME):
        with suppress(OSError, ValueError, TypeError):
            request = _READER.read(path.read_bytes())
            if isinstance(request, Enqueue):
                yield request.point


def _requests(folder: SafePath) -> list[SafePath]:
    """Return the requests in a folder, oldest first, without unfinished files, which begin with a dot."""
    return folder.glob("[!.]*.json")


class Inbox:
    """Converts requests to a running search into events of its coordinator, which calls this object.

    It also observes the journal.

    Args:
        run: the run directory.
        space: the search space; None for a training, which does not accept points.
        ledger: the trials so far.
        grace_s: seconds for running trials to write a checkpoint before a requested end.
        say: prints a line for the user.
    """

    def __init__(
        self, run: Path, space: Space | None, ledger: Ledger, grace_s: float, say: Callable[[str, TextIO | None], None]
    ) -> None:
        self._folder = SafePath(run) / INBOX_NAME
        self._space = space
        self._ledger = ledger
        self._grace_s = grace_s
        self._say = say
        #: names of the files read; used only by `look`
        self._known = set[str]()
        #: (name, content) of files, appended by `look`; names of files to be removed by `look`
        self._arrived: deque[tuple[str, bytes]] = deque()
        self._removed: deque[str] = deque()
        #: names of files whose effects will be in the journal at the coordinator's next call
        self._handled: list[str] = []
        #: name of a file -> function that returns True for a matching point, until a trial has it
        self._waiting: dict[str, Callable[[Point], bool]] = {}
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="inbox", daemon=True)
        with suppress(OSError):
            self.look()  # for points enqueued before this start

    def start(self) -> None:
        """Start checking for requests."""
        self._thread.start()

    def _watch(self) -> None:
        while not self._is_closed.wait(LOOK_S):
            with suppress(OSError):  # the disk may recover
                self.look()

    def look(self) -> None:
        """Remove files of fulfilled requests, and read new ones; no other method accesses files."""
        while self._removed:
            (self._folder / self._removed.popleft()).unlink(missing_ok=True)
        for path in _requests(self._folder):
            if path.name not in self._known:
                with suppress(OSError):  # try again next time
                    self._arrived.append((path.name, path.read_bytes()))
                    self._known.add(path.name)

    def __call__(self) -> list[ins.CoordinatorEvent]:
        """Return the requests since the last call; the effects of earlier ones are in the journal by now."""
        self._removed.extend(self._handled)
        self._handled.clear()
        events = []
        while self._arrived:
            name, text = self._arrived.popleft()
            try:
                event = self._event_of(name, _READER.read(text))
            except (ValueError, TypeError, ConfigurationError) as error:
                self._say(
                    f"`{self._folder / name}` is ignored, because it is not a request to this run: {error}", sys.stderr
                )
                continue
            if event is not None:
                events.append(event)
        return events

    def _event_of(self, name: str, request: Request) -> ins.CoordinatorEvent | None:
        """Return the event for a request; None if there is nothing to do."""
        if isinstance(request, Enqueue):
            return self._point_of(name, request)
        assert isinstance(request, Stop)
        self._handled.append(name)
        if not self._is_for_us(request.owner):
            return None
        if request.trial is None:
            self._say(f"`nnlo-opt stop`: {'no new trial begins' if request.finish else 'all trials stop'}.", None)
            return ins.Drain(reason=STOPPED) if request.finish else ins.Preempt(reason=STOPPED, grace_s=self._grace_s)
        return ins.StopTrial(trial=request.trial, reason=STOPPED)

    def _is_for_us(self, owner: dict[str, Any]) -> bool:
        """Return True if a request to stop was not made for an earlier start of the run."""
        if self._ledger.is_shared:  # and this job leads
            last = owner.get("job")
            return isinstance(last, int) and last >= self._ledger.leader
        return owner == this_process()

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
        """Note the start of a trial, which may fulfil a request."""
        if isinstance(event, TrialSuggested):
            self._fulfil(event.point)

    def decline(self, point: Point, why: str) -> None:
        """Note that the search will not suggest an enqueued point."""
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
            self._thread.join(5 * LOOK_S)  # abandon the thread if the file system hangs
        if not self._thread.is_alive():
            with suppress(OSError):
                self.look()
