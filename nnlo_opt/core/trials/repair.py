"""Repairs a run directory with a damaged journal: the readable events become a new, consistent journal.

`repair` deletes nothing: the damaged journal is kept as `journal.jsonl.damaged-N`, and files of lost trials as
`trials.damaged-N`. The new journal is put in place last; an interrupted repair starts again.

`salvage` reads bytes and returns events. A line is valid if its checksum matches its number and its event can be read.
Valid lines are kept if the ledger accepts them in order; events of a lost trial or assignment are dropped with it.
Trials and assignments are numbered without gaps, so those after a lost one are renumbered; `moved` maps the numbers,
which also name files.
"""

import hashlib
import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from nnlo_opt.core.base.errors import JournalError, ProtocolError, UnreadableEventError
from nnlo_opt.core.base.files import atomic_path, atomic_write, parse_object, sync
from nnlo_opt.core.base.records import MOST_SECONDS, MOST_UNIX_SECONDS, without_collection
from nnlo_opt.core.base.safe_path import MOST_BYTES, SafePath
from nnlo_opt.core.trials import events as ev
from nnlo_opt.core.trials.journal import (
    LINE_BEGIN,
    JournalReader,
    LineBlocks,
    body_of,
    decode_line,
    encode_line,
    read_journal,
    run_of,
)
from nnlo_opt.core.trials.ledger import Ledger
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME
from nnlo_opt.core.trials.run_lock import RunLock
from nnlo_opt.core.trials.sharing import refuse_shared
from nnlo_opt.core.trials.sync_mark import read_mark


@dataclass(slots=True)
class Salvage:
    """Result of `salvage`: the kept events, and a report of the lost ones."""

    #: events of the new journal
    events: list[ev.Event] = field(default_factory=list)
    #: (first, last) line of each range of missing or damaged lines, counted from 1
    gaps: list[tuple[int, int]] = field(default_factory=list)
    #: number of invalid or repeated lines
    n_damaged: int = 0
    #: number of events whose time was out of bounds and has been clipped
    n_timed: int = 0
    #: synced bytes that are missing at the end of the file
    n_missing: int = 0
    #: descriptions of valid events that depend on lost ones
    dropped: list[str] = field(default_factory=list)
    #: old number -> new number of all kept trials
    moved: dict[int, int] = field(default_factory=dict)
    #: new numbers of kept trials that have not ended: they continue when the run is resumed
    still_open: list[int] = field(default_factory=list)
    #: old numbers of lost trials
    lost: list[int] = field(default_factory=list)
    #: True if the number of an assignment changes
    renumbers_assignments: bool = False

    @property
    def renumbers(self) -> bool:
        """True if the number of a trial changes."""
        return any(old != new for old, new in self.moved.items())


def salvage(file: IO[bytes], name: str) -> Salvage:
    """Return the valid part of a journal, which is read twice; JournalError if nothing resumable is left.

    An event of a later version is not damage, and raises JournalError, too.
    """
    result = Salvage()
    sound = _sound_lines(file, result)
    result.gaps = _gaps(sound)
    starts = [event for _, event in sorted(sound.items()) if isinstance(event, ev.RunStarted)]
    if not starts:
        raise JournalError(
            f"A journal must have an intact RunStarted event, which describes the search. Received: `{name}` without "
            "one; restore the file from a copy, or start a new run under another name."
        )
    first = min(sound)
    if not isinstance(sound[first], ev.RunStarted):
        # Each RunStarted contains everything that is constant between starts, so a later one can replace the first.
        start = starts[0]
        sound[-1] = start.replaced(time_s=0.0, unix_s=min(max(start.unix_s - start.time_s, 0.0), MOST_UNIX_SECONDS))
    with without_collection():
        _replay((event for _, event in sorted(sound.items())), result)
    return result


def _sound_lines(file: IO[bytes], result: Salvage) -> dict[int, ev.Event]:
    """Return sequence number -> event of every valid line; for repeated numbers the first line counts."""
    sound: dict[int, ev.Event] = {}
    run, n_lines = _run_of(_lines_of(file)), 0
    for line in _lines_of(file):
        n_lines += 1
        if (match := LINE_BEGIN.match(line)) and int(match[1]) not in sound:
            with suppress(ValueError, UnreadableEventError):
                sound[int(match[1])] = _event_of(int(match[1]), line, run, result)
    result.n_damaged = n_lines - len(sound)
    return sound


def _lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """Yield all lines of a journal, and what follows the last."""
    file.seek(0)
    blocks = LineBlocks(file, cuts=True)
    for lines in blocks:
        yield from filter(None, lines)
    yield from filter(None, [blocks.rest])


def _event_of(seq: int, line: bytes, run: str, result: Salvage) -> ev.Event:
    """Return the event of a line; an impossible time, from a clock wrong by centuries, is clipped."""
    try:
        return decode_line(seq, line, run)
    except UnreadableEventError:
        values = parse_object(body_of(seq, line, run))
        for name, least, most in (("time_s", -MOST_SECONDS, MOST_SECONDS), ("unix_s", 0.0, MOST_UNIX_SECONDS)):
            if isinstance(values.get(name), int | float):
                values[name] = min(max(values[name], least), most)
        event = ev.event_from_json(json.dumps(values).encode())
        result.n_timed += 1
        return event


def _run_of(lines: Iterable[bytes]) -> str:
    """Return the run's identity from the first valid start: each start has it, so line 0 may be damaged."""
    for line in lines:
        match, run = LINE_BEGIN.match(line), run_of(line)
        if match and run:
            with suppress(ValueError):
                body_of(int(match[1]), line, run)
                return run
    return ""


def _gaps(sound: Iterable[int]) -> list[tuple[int, int]]:
    gaps, expected = [], 0
    for seq in sorted(sound):
        if seq > expected:
            gaps.append((expected + 1, seq))
        expected = seq + 1
    return gaps


class _Renumbering(dict[int, int]):
    """Old number -> new number of all trials or assignments that are kept; ProtocolError for a lost one."""

    def __missing__(self, old: int) -> int:
        raise ProtocolError(f"{old} was lost.")


def _replay(events: Iterable[ev.Event], result: Salvage) -> None:
    """Fill `result` with the events that a fresh ledger accepts."""
    ledger, trials, assignments = Ledger(), _Renumbering(), _Renumbering()
    seen: set[int] = set()
    for event in events:
        seen.update([event.trial] if hasattr(event, "trial") else [])
        try:
            kept = _renumbered(event, trials, assignments)
            if isinstance(kept, ev.TrialCompleted) and len(ledger.trials[kept.trial].folds) < ledger.identity.n_fold:
                # The end of a fold is lost: the trial has no model, and the fold is trained again.
                raise ProtocolError(f"Trial {kept.trial} has lost a fold.")
            for lost in _ends_lost_before(kept, ledger):
                ledger.apply(lost)
                result.events.append(lost)
            ledger.apply(kept)
        except ProtocolError:
            result.dropped.append(_in_words(event))
            continue
        result.events.append(kept)
        # This comes last, because a refused event must not take a number.
        if isinstance(event, ev.TrialSuggested):
            trials.setdefault(event.trial, len(trials))
        elif isinstance(event, ev.FoldAssigned):
            assignments.setdefault(event.assignment, len(assignments))
    result.moved = trials
    result.renumbers_assignments = any(old != new for old, new in assignments.items())
    result.lost = sorted(seen - trials.keys())
    result.still_open = [trial.number for trial in ledger.trials if not trial.state.ended]


def _ends_lost_before(event: ev.Event, ledger: Ledger) -> list[ev.Event]:
    """Return ends of assignments that must have been lost, because their fold was assigned again."""
    if not isinstance(event, ev.FoldAssigned) or event.trial >= len(ledger.trials):
        return []
    return [
        ev.AssignmentLost(time_s=event.time_s, assignment=running.number, reason="its end was lost with the journal")
        for running in ledger.trials[event.trial].running
        if running.fold == event.fold
    ]


def _renumbered(event: ev.Event, trials: _Renumbering, assignments: _Renumbering) -> ev.Event:
    """Return `event` with the new numbers; ProtocolError if its trial or assignment is lost."""
    changes: dict[str, Any] = {}
    match event:
        case ev.TrialSuggested():
            changes["trial"] = len(trials)
        case ev.FoldAssigned():
            changes = {"assignment": len(assignments), "trial": trials[event.trial]}
        case ev.BestExpected():
            changes["trial"] = trials.get(event.trial, -1)
        case ev.RanksLost():  # the event concerns ranks, with or without an assignment
            changes["assignment"] = assignments.get(event.assignment, -1)
        case _:
            for name, numbers in (("trial", trials), ("assignment", assignments)):
                if hasattr(event, name):
                    changes[name] = numbers[getattr(event, name)]
    return event.replaced(**changes) if changes else event


def _in_words(event: ev.Event) -> str:
    for name in ("trial", "assignment"):
        if hasattr(event, name):
            return f"{type(event).__name__} of {name} {getattr(event, name)}"
    return type(event).__name__


# ---------------------------------------------------------------- in a run directory


def repair(
    run: Path, journal: SafePath | None = None, replace: Callable[[Salvage, str], None] | None = None
) -> tuple[Salvage, SafePath] | None:
    """Repair the journal of `run`; return the result and the path of the damaged journal; None if it is valid.

    Args:
        run: run directory.
        journal: the journal if jobs share the run; None for that of the run.
        replace: called with the result and a new identity to put the repaired journal in place, and may refuse it; None
            to replace the damaged one.

    Raises:
        ConfigurationError: a coordinator is running, or jobs share the run now.
        JournalError: nothing can be salvaged.
    """
    refuse_shared(run)
    with closing(RunLock(run, timeout_s=0.0)):
        path = SafePath(run) / JOURNAL_NAME if journal is None else journal
        mark = read_mark(path)
        with path.open("rb") as file:
            n_bytes = os.fstat(file.fileno()).st_size
            try:
                read_journal(file, str(path), mark)
            except JournalError:
                _check_size(path, file, n_bytes)
                found = salvage(file, str(path))
            else:
                return None
            digest = _digest(file)
        found.n_missing = 0 if mark is None else max(0, mark.n_bytes - n_bytes)
        damaged = _place_for(digest, SafePath(run))
        if not damaged.exists():
            with atomic_path(damaged) as copy:
                path.copy(copy)
        # A new identity, because the mark of the last sync does not apply to this journal. A repeated repair finds the
        # same one.
        identity = digest.hex()[:16]
        if replace is not None:
            replace(found, identity)
            return found, damaged
        if found.renumbers:
            _move_files(
                path.with_name("trials"), path.with_name(damaged.name.replace(JOURNAL_NAME, "trials")), found.moved
            )
        atomic_write(path, b"".join(encode_line(seq, event, identity) for seq, event in enumerate(found.events)))
        return found, damaged


def _digest(file: IO[bytes]) -> bytes:
    file.seek(0)
    hashed = hashlib.sha256()
    while block := file.read(2**20):
        hashed.update(block)
    return hashed.digest()


def _check_size(path: SafePath, file: IO[bytes], n_bytes: int) -> None:
    """Raise JournalError for a journal that is too large to copy; the message shows how much of it may be valid."""
    if n_bytes > MOST_BYTES:
        sound = JournalReader(str(path))
        file.seek(0)
        with suppress(JournalError):
            sound.read(LineBlocks(file))
        raise JournalError(
            f"A journal must have at most {MOST_BYTES:,} bytes to be repaired, because the damaged one is kept. "
            f"Received: `{path}` with {n_bytes:,}, of which the first {sound.n_sound:,} are sound: keep these by "
            f"`truncate -s {sound.n_sound} {shlex.quote(str(path))}`."
        )


def _place_for(digest: bytes, run: SafePath) -> SafePath:
    """Return the path for the damaged journal: that of an interrupted repair, or a free one."""
    number = 1
    while (path := run / f"{JOURNAL_NAME}.damaged-{number}").exists():
        with path.open("rb") as file:
            if _digest(file) == digest:
                break
        number += 1
    return path


def _move_files(trials: SafePath, aside: SafePath, moved: dict[int, int]) -> None:
    """Rename the folders of trials to their new numbers; folders left in `aside` belong to lost trials."""
    if not aside.exists():
        if not trials.exists():
            return
        trials.replace(aside)
    trials.mkdir(exist_ok=True)
    for old, new in moved.items():
        source, target = aside / f"{old:04d}", trials / f"{new:04d}"
        if source.exists() and not target.exists():
            source.replace(target)
    sync(trials)
    sync(trials.parent)
