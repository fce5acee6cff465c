"""The judge of fuzz.py: gives a reader damaged files, and says what it should not have done."""

import os
import resource
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from random import Random
from typing import Any, NamedTuple

import psutil
from fuzz_edits import Edit, Seed

from nnlo_opt.core.base.errors import NnloError

#: seconds and bytes that one file may take, and seconds after which a reader is stopped
SLOW_S, MAX_BYTES, HANG_S = 2.0, 1 << 30, 15.0
#: files that a process judges: what one leaves behind must not count for many
MOST_JUDGED = 100
FINE = ("read", "refused")


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A reader of the package, with sound files."""

    seeds: Mapping[str, Seed]
    #: (name of the seed, damaged file, whether its checksums were made anew) -> what was read
    read: Callable[[str, bytes, bool], Any]
    #: (name of the seed, damaged file, what was read) -> what is missing or false without a word about it; "" if
    #: nothing is. Not asked if checksums were made anew
    differs: Callable[[str, bytes, Any], str] = lambda name, data, found: ""
    #: errors that the reader documents
    allowed: tuple[type[BaseException], ...] = (NnloError,)
    #: True if a file may crash the process
    isolated: bool = False
    #: (name of the seed, damaged file): refuses a file that crashes or keeps a process, as commands do before
    check: Callable[[str, bytes], object] = lambda name, data: None


class Verdict(NamedTuple):
    #: one of `FINE`, or what is wrong
    kind: str
    detail: str = ""


class _TimeIsUp(BaseException):
    """Raised by the timer."""


def judged(reader: Reader, name: str, data: bytes, sealed: bool) -> Verdict:
    """Have a damaged file of the seed `name` read.

    What is slow is read twice, as the machine may have been busy; what fails in a process that has read other files
    before, once more in a new one.
    """
    judge = _isolated if reader.isolated else _judged
    verdict = judge(reader, name, data, sealed)
    if verdict.kind not in FINE:
        try:
            reader.check(name, data)
        except reader.allowed as error:
            return Verdict("refused", str(error)[:500])
        if reader.isolated or verdict.kind == "slow":
            return judge(reader, name, data, sealed)
    return verdict


def _judged(reader: Reader, name: str, data: bytes, sealed: bool) -> Verdict:
    peak_kb, began_s = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.perf_counter()
    signal.setitimer(signal.ITIMER_REAL, HANG_S)
    try:
        found = reader.read(name, data, sealed)
        lost = "" if sealed else reader.differs(name, data, found)
        verdict = Verdict(f"silent: {lost}" if lost else "read")
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        is_allowed = isinstance(error, reader.allowed)
        verdict = Verdict("refused" if is_allowed else f"{type(error).__name__} in {_place(error)}", str(error)[:500])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    took_s = time.perf_counter() - began_s
    grown_mb = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak_kb) >> 10
    if verdict.kind in FINE and took_s > SLOW_S:
        return Verdict("slow", f"{took_s:.1f} s")
    # What is isolated is read by libraries, which may take what a file declares before they refuse it.
    most_mb = MAX_BYTES >> (20 if reader.isolated else 22)
    return Verdict("memory", f"{grown_mb} MiB") if verdict.kind in FINE and grown_mb > most_mb else verdict


class _Child:
    """Process that judges the files of a reader, one after another: to fork one for each takes ten times as long."""

    def __init__(self, reader: Reader) -> None:
        self.reader, self.n_judged = reader, 0
        self._pipe, there = Pipe()
        self._pid = os.fork()
        if self._pid == 0:
            self._pipe.close()
            try:
                with limited():
                    while True:
                        there.send(_judged(reader, *there.recv()))
            finally:
                os._exit(0)
        there.close()

    def judged(self, *given: Any) -> Verdict:
        """Judge as `_judged` does, unless the process crashes or hangs, and is at its end by that."""
        self.n_judged += 1
        self._pipe.send(given)
        if not self._pipe.poll(SLOW_S) and not self._answers():
            os.kill(self._pid, signal.SIGKILL)
            return Verdict("hang")
        with suppress(EOFError, ConnectionError):
            return self._pipe.recv()  # type: ignore[no-any-return]
        return Verdict(f"ended by signal {os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT).si_status}")

    def _answers(self) -> bool:
        """Wait for longer: until the process has used some seconds of its processor, or none for very long."""
        process, until_s = psutil.Process(self._pid), time.monotonic() + HANG_S
        most_s = SLOW_S + sum(process.cpu_times())
        while time.monotonic() < until_s and sum(process.cpu_times()) < most_s:
            if self._pipe.poll(0.2):
                return True
        return False

    def end(self) -> None:
        self._pipe.close()
        os.waitpid(self._pid, 0)


#: the process that judges at present
_CHILD: list[_Child] = []


def _isolated(reader: Reader, *given: Any) -> Verdict:
    """Judge in a child process, which the file may crash; the next file gets another one if anything is wrong."""
    if _CHILD and (_CHILD[0].reader is not reader or _CHILD[0].n_judged == MOST_JUDGED):
        end_child()
    if not _CHILD:
        _CHILD.append(_Child(reader))
    verdict = _CHILD[0].judged(*given)
    if verdict.kind not in FINE:
        end_child()
    return verdict


def end_child() -> None:
    """End the process that judges, if there is one: nothing is left to judge."""
    while _CHILD:
        _CHILD.pop().end()


@contextmanager
def limited() -> Iterator[None]:
    """Limit the memory of this process, and have its timer raise."""

    def stop(*_: object) -> None:
        raise _TimeIsUp

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        n_bytes = int(file.read().split()[0]) * resource.getpagesize()
    before = signal.signal(signal.SIGALRM, stop)
    # Libraries reserve addresses that they do not use. Where none are left, the stack cannot grow: a decoder in C that
    # is 360 lists deep ended a process with three frameworks by SIGSEGV.
    resource.setrlimit(resource.RLIMIT_AS, (n_bytes + 4 * MAX_BYTES, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
        signal.signal(signal.SIGALRM, before)


def _place(error: BaseException) -> str:
    """Return the innermost line of the package that raised."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/nnlo_opt/" in frame.filename] or frames
    return f"{own[-1].filename.rpartition('/nnlo_opt/')[2]}:{own[-1].lineno}"


@dataclass
class Report:
    """What a reader did with many files."""

    #: kind of verdict -> files
    counts: Counter[str] = field(default_factory=Counter)
    #: the first file of each kind that is not fine, with as few edits as it needs: seed, edits, file, verdict
    cases: dict[str, tuple[str, list[Edit], bytes, Verdict]] = field(default_factory=dict)

    @property
    def n_failed(self) -> int:
        return sum(n for kind, n in self.counts.items() if kind not in FINE)


def fuzz(label: str, reader: Reader, n_inputs: int, seed: int) -> Report:
    """Have `n_inputs` damaged files read."""
    report, names = Report(), list(reader.seeds)
    pool = [sound.data for sound in reader.seeds.values()]
    with limited():
        for i in range(n_inputs):
            rng = Random(f"{seed} {label} {i}")
            name = rng.choice(names)
            sound = reader.seeds[name]
            edits = sound.edits(rng)
            verdict = judged(reader, name, *sound.damaged(edits, pool))
            report.counts[verdict.kind] += 1
            if verdict.kind in FINE or verdict.kind in report.cases:
                continue
            for edit in [*edits]:  # leave out those that the verdict does not need
                fewer = [other for other in edits if other is not edit]
                if fewer and judged(reader, name, *sound.damaged(fewer, pool)).kind == verdict.kind:
                    edits = fewer
            report.cases[verdict.kind] = name, edits, sound.damaged(edits, pool)[0], verdict
    return report
