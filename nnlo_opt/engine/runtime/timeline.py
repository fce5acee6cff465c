"""Timeline of all ranks (`--timeline`), a Chrome trace to be opened in https://ui.perfetto.dev.

Every rank keeps a `RankTimeline` and writes its part, `<run>/timeline/rank-00003.json`. The rank rewrites the whole
part every few seconds and at its end, so a part is a valid trace even if the rank is killed. Rank 0 merges the parts to
`<run>/timeline.json` (`merge_timelines`).

Format: "Trace Event Format" (Chromium project), complete events ("ph": "X") and metadata ("ph": "M"). pid is the world
rank and tid a thread of it, the main one 0. ts and dur are microseconds since the first rank began.

Clock: each rank uses its monotonic clock, which it compares with the wall clock once, so steps of the wall clock during
the run have no effect. Ranks of one node agree to some microseconds. Ranks of several nodes agree as well as the wall
clocks of the nodes: below a millisecond with PTP or chrony on a local network, and worse without. If a message seems to
arrive before it was sent, the difference shows the error of the clocks; nothing is corrected.
"""

import json
import logging
import os
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from heapq import nlargest
from pathlib import Path
from typing import IO, Any, TypeAlias

from nnlo_opt.core.base.clock import Clock
from nnlo_opt.core.base.files import ALL_FINITE, atomic_path, atomic_write, parse_object
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.base.timeline import Timeline

logger = logging.getLogger(__name__)

#: file of a run directory with the timeline of all ranks
TIMELINE_NAME = "timeline.json"
#: folder of a run directory with the parts of all ranks
PARTS_NAME = "timeline"
#: most events of all ranks together: about 65 MB, which Perfetto opens in seconds
_MAX_EVENTS = 500_000
#: most events of one rank: 18 MB of memory, 0.3 s to write
_MAX_EVENTS_OF_RANK = 50_000
#: minimum seconds between two writes of a part, and minimum ratio of the pause to the duration of a write
_WRITE_PERIOD_S, _WRITE_RATIO = 10.0, 100.0
#: errors from reading a damaged part
_UNREADABLE = (OSError, ValueError, TypeError, LookupError, ArithmeticError)


#: name, category, tid, start and end in seconds since the timeline began, arguments
_Event: TypeAlias = tuple[str, str, int, float, float, dict[str, Any] | None]


@dataclass(slots=True)
class _Span:
    """Span of a `RankTimeline`."""

    timeline: "RankTimeline"
    name: str
    category: str
    arguments: dict[str, Any] | None
    start_s: float = 0.0

    def __enter__(self) -> None:
        self.start_s = self.timeline.now()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any, /) -> None:
        arguments = self.arguments if kind is None else {**(self.arguments or {}), "error": kind.__name__}
        self.timeline.record(self.name, self.category, None, self.start_s, arguments)


class RankTimeline(Timeline):
    """Timeline of one rank; any of its threads may add events.

    Memory is bounded: if there are too many events, the shorter half is dropped and counted. So a long run keeps its
    epochs, its validations and everything unusually slow, from beginning to end.

    Args:
        world_rank: number of the rank.
        label: name of the rank in the viewer.
        clock: source of times.
        max_events: most events to keep; see `events_per_rank`.
    """

    keeps = True

    def __init__(self, world_rank: int, label: str, clock: Clock, max_events: int = _MAX_EVENTS_OF_RANK) -> None:
        self._world_rank = self._number = world_rank
        self._label = label
        #: its job in words, if jobs share the run
        self._job = ""
        self._monotonic_s = clock.monotonic_s
        self._max_events = max_events
        #: start of the timeline on the monotonic clock and on the wall clock, seconds
        self._zero_s = clock.monotonic_s()
        self._zero_unix_s = clock.unix_s()
        #: the events, ordered by their ends
        self._events: list[_Event] = []
        self.n_dropped = 0
        main = threading.main_thread()
        #: (ident, name) of a thread, or (0, name) of another track -> tid
        self._tracks: dict[tuple[int, str], int] = {(main.ident or 0, main.name): 0}
        #: name of each tid
        self._track_names: list[str] = ["main"]
        #: guards the events and the tracks
        self._lock = threading.Lock()
        self._next_write_s = 0.0

    # ------------------------------------------------------------ events

    def span(self, name: str, /, category: str = "compute", **arguments: Any) -> AbstractContextManager[None]:
        return _Span(self, name, category, arguments or None)

    def now(self) -> float:
        return self._monotonic_s() - self._zero_s

    def add(self, name: str, since: float, /, *, track: str, category: str = "wait", **arguments: Any) -> None:
        self.record(name, category, track, since, arguments or None)

    def record(
        self, name: str, category: str, track: str | None, start_s: float, arguments: dict[str, Any] | None
    ) -> None:
        """Add an event that ends now; `track` None: the track of this thread."""
        end_s = self.now()
        key = (threading.get_ident(), threading.current_thread().name) if track is None else (0, track)
        with self._lock:
            number = self._tracks.get(key)
            if number is None:
                number = self._new_track(*key)
            self._events.append((name, category, number, start_s, end_s, arguments))
            if len(self._events) > self._max_events:
                self._thin_out()

    def _new_track(self, ident: int, name: str) -> int:
        """Return a tid for a new thread, reusing that of an ended thread with the same name (one per fold)."""
        alive = {thread.ident for thread in threading.enumerate()}
        ended = next((key for key in self._tracks if ident and key[1] == name and key[0] not in {0, *alive}), None)
        if ended is not None:
            number = self._tracks.pop(ended)
        else:
            number = len(self._track_names)
            self._track_names.append(name)
        self._tracks[ident, name] = number
        return number

    def _thin_out(self) -> None:
        n_kept = max(1, self._max_events // 2)
        events = self._events
        longest = sorted(range(len(events)), key=lambda i: events[i][3] - events[i][4])[:n_kept]
        self.n_dropped += len(events) - n_kept
        self._events = [events[i] for i in sorted(longest)]

    # ------------------------------------------------------------ the file

    def name(self, label: str) -> None:
        self._label = label

    def open(self, run_directory: Path, first_rank: int = 0, job: str = "") -> None:
        self.directory = run_directory
        self._number = first_rank + self._world_rank
        self._job = job

    def flush(self) -> None:
        if self.directory is not None and self._monotonic_s() >= self._next_write_s:
            self._write(self.directory)

    def close(self) -> None:
        if self.directory is not None:
            self._write(self.directory)

    def _write(self, run_directory: Path) -> None:
        path = part_path(run_directory, self._number)
        began_s = self._monotonic_s()
        try:
            path.parent.mkdir(exist_ok=True)
            atomic_write(path, self.to_text(), durable=False)
        except OSError as error:
            logger.warning("no timeline of this rank: %s", error)
        ended_s = self._monotonic_s()
        self._next_write_s = ended_s + max(_WRITE_PERIOD_S, _WRITE_RATIO * (ended_s - began_s))

    def to_text(self) -> str:
        """Return the part as a trace: a line of metadata, a line for every event, a last line."""
        with self._lock:
            events, names, n_dropped = list(self._events), list(self._track_names), self.n_dropped
        facts: dict[str, Any] = {"rank": self._number, "host": socket.gethostname(), "process": os.getpid()}
        facts |= {"zero_unix_s": self._zero_unix_s, "n_events": len(events), "n_dropped": n_dropped}
        pid = self._number
        lines = [
            _metadata("process_name", pid, 0, {"name": f"{self._job}: " * bool(self._job) + self._label}),
            _metadata("process_sort_index", pid, 0, {"sort_index": pid}),
            *(_metadata("thread_name", pid, tid, {"name": name}) for tid, name in enumerate(names)),
            *(_complete(event, pid) for event in events),
        ]
        return _head(facts) + ",\n".join(_line(event) for event in lines) + _FOOT


def events_per_rank(n_ranks: int) -> int:
    """Return how many events each rank may keep so that a viewer can still open the merged file."""
    return min(_MAX_EVENTS_OF_RANK, max(2_000, _MAX_EVENTS // n_ranks))


# ---------------------------------------------------------------- the parts and the whole


def part_path(run_directory: Path, world_rank: int) -> SafePath:
    """Return the path of the part of a rank."""
    return SafePath(run_directory) / PARTS_NAME / f"rank-{world_rank:05d}.json"


def clear_parts(run_directory: Path) -> None:
    """Remove the parts of an earlier start of the run; called by rank 0, before other ranks know the directory."""
    (SafePath(run_directory) / PARTS_NAME).remove()


def merge_timelines(run_directory: Path) -> Path | None:
    """Merge the parts to `timeline.json` and return its path, or None if there is no part.

    The parts are read and written event by event. A missing or unreadable part is left out and logged. A run that jobs
    share may have had more ranks than any of its jobs expected: then the whole has the longest events of each rank.
    """
    parts = []
    for path in (SafePath(run_directory) / PARTS_NAME).glob("rank-*.json"):
        try:
            parts.append((path, _read_facts(path)))
        except _UNREADABLE as error:
            logger.warning("left out of the timeline: %s (%s)", path, error)
    if not parts:
        return None
    whole = run_directory / TIMELINE_NAME
    try:
        with atomic_path(whole) as temporary, temporary.open("w", encoding="utf-8") as file:
            _write_whole(file, parts)
    except OSError as error:
        logger.warning("no timeline of all ranks, only those in `%s`: %s", run_directory / PARTS_NAME, error)
        return None
    return whole


def _write_whole(file: IO[str], parts: Sequence[tuple[SafePath, dict[str, Any]]]) -> None:
    zero_unix_s = min(facts["zero_unix_s"] for _, facts in parts)
    most = events_per_rank(len(parts))
    file.write(_head({"zero_unix_s": zero_unix_s, "ranks": [facts for _, facts in parts]}))
    separator = ""
    for path, facts in parts:
        shift_us = round((facts["zero_unix_s"] - zero_unix_s) * 1e9) / 1000
        n_events = facts.get("n_events")
        is_long = isinstance(n_events, int) and n_events > most
        for event in _longest(path, shift_us, most) if is_long else _shifted(path, shift_us):
            file.write(separator + _line(event))
            separator = ",\n"
    file.write(_FOOT)


_FOOT = "\n]}\n"
#: one encoder for all events: creating an encoder takes longer than encoding an event
_ENCODER = json.JSONEncoder(default=str, allow_nan=False, check_circular=False)


def _head(facts: Mapping[str, Any]) -> str:
    return f'{{"otherData": {_line(facts)}, "displayTimeUnit": "ms", "traceEvents": [\n'


def _line(value: Mapping[str, Any]) -> str:
    # Write values that JSON does not support as text: a NumPy number, or a loss that is not finite.
    try:
        return _ENCODER.encode(value)
    except ValueError:
        return json.dumps({**value, "args": {name: str(argument) for name, argument in value["args"].items()}})


def _complete(event: _Event, pid: int) -> dict[str, Any]:
    name, category, track, start_s, end_s, arguments = event
    # Round both ends to whole nanoseconds. If start and duration were rounded, nested spans might overlap.
    start_ns, end_ns = round(start_s * 1e9), round(end_s * 1e9)
    place: dict[str, Any] = {"name": name, "cat": category, "ph": "X", "pid": pid, "tid": track}
    complete = place | {"ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000}
    return {**complete, "args": arguments} if arguments else complete


def _metadata(name: str, pid: int, tid: int, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "cat": "__metadata", "ph": "M", "pid": pid, "tid": tid, "ts": 0, "args": arguments}


def _read_facts(path: SafePath) -> dict[str, Any]:
    with path.open(encoding="utf-8") as file:
        facts = parse_object(file.readline() + "]}", **ALL_FINITE)["otherData"]
    if not 0 <= facts["zero_unix_s"] < 1e12:  # a Unix time
        raise ValueError("it begins at no time")
    return dict(facts)


def _longest(path: SafePath, shift_us: float, most: int) -> Iterator[dict[str, Any]]:
    """Yield the events of a part like `_shifted`, of its spans only the `most` longest."""
    spans = (event for event in _shifted(path, shift_us) if event["ph"] != "M")
    longest_us = nlargest(most, map(_length_us, spans)) or [0.0]
    least_us = longest_us[-1]
    n_least = longest_us.count(least_us)  # of these, the first
    for event in _shifted(path, shift_us):
        length_us = _length_us(event)
        if event["ph"] == "M" or length_us > least_us or (length_us == least_us and n_least > 0):
            n_least -= event["ph"] != "M" and length_us == least_us
            yield event


def _length_us(event: dict[str, Any]) -> float:
    length_us = event.get("dur")
    return length_us if isinstance(length_us, int | float) else 0.0


def _shifted(path: SafePath, shift_us: float) -> Iterator[dict[str, Any]]:
    """Yield the events of a part, shifted by `shift_us`, up to the first line that is not an event."""
    with path.open(encoding="utf-8", errors="replace") as file:
        file.readline()
        for line in file:
            text = line.rstrip().removesuffix(",")
            if text == "]}":
                return
            try:
                event = parse_object(text, **ALL_FINITE)
                if event["ph"] != "M":
                    event["ts"] = round(event["ts"] + shift_us, 3)
            except _UNREADABLE:
                logger.warning("the timeline in %s ends in the middle", path)
                return
            yield event
