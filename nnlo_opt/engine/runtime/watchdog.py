"""Watchdog of a rank: a thread that ends a hung process, so that other ranks notice a death instead of waiting.

The watchdog monitors its own process by the pulse (`pulse`), and the other ranks of the node by their heartbeats: a
process that was stopped (SIGSTOP), or whose interpreter is blocked in C code, cannot watch itself. The first rank of
the node with a beating heart ends such a process. The watchdog also sees which rank of the node ends first when a job
dies; without ULFM nothing else can tell. If mpirun or its daemon on this node has been killed, the watchdog ends its
rank, because MPI cannot end a rank that computes (`engine.runtime.starter`).

Only time in which the watchdog itself runs counts: a job that was suspended as a whole continues when it resumes.
"""

import faulthandler
import math
import os
import select
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, NoReturn

from nnlo_opt.core.base.errors import EXIT_FAILURE
from nnlo_opt.core.base.pulse import PULSE, TOGETHER, Pulse
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.engine.runtime.peers import Heart, Peer, has_ended
from nnlo_opt.engine.runtime.signals import handle
from nnlo_opt.engine.runtime.starter import starter_of

#: longest time between two checks: seconds, and fraction of the time-out
LOOK_S, LOOK_PART = 2.0, 0.1
#: seconds of slow work before the first line that reports it; the time doubles for each further line
SLOW_S = 10.0
#: seconds that a rank lives on after SIGTERM, so that its watchdog can report deaths; mpirun grants half a second
LINGER_S = 0.2
#: a rank died alone, not with the whole job, if no other rank dies within these seconds
ALONE_S = 0.05
#: seconds to write the stacks of a hung rank, to a file system that may hang as well; and seconds after that when the
#: rank is ended even if another handler catches the signal
LAST_WORDS_S, LATER_S = 10.0, 2.0
#: seconds for ranks to end by themselves after mpirun was killed; then other ranks kill those that are blocked
LEAVE_S = 1.0


@dataclass(slots=True)
class Watch:
    """Measures how long a counter has not changed; pure."""

    timeout_s: float
    #: longest countable time between two checks: beyond it, the watchdog itself was not running
    longest_gap_s: float
    #: count at the last check, and its time; None before the first
    _count: int = -1
    _looked_at_s: float | None = None
    #: seconds since the counter changed
    idle_s: float = 0.0

    def look(self, count: int, patience: float, now_s: float) -> bool:
        """Return True if `count` has not changed for longer than `patience` times the time-out."""
        gap_s = 0.0 if self._looked_at_s is None else min(now_s - self._looked_at_s, self.longest_gap_s)
        self.idle_s = self.idle_s + gap_s if count == self._count else 0.0
        self._count, self._looked_at_s = count, now_s
        return self.idle_s > patience * self.timeout_s


class Watchdog:
    """Watchdog of one rank. The rank sends `heart.handle` to the other ranks of its node, and watches theirs.

    Args:
        world_rank: number of the rank.
        timeout_s: `--hang-timeout` in seconds; 0: never end a process for hanging.
        tell: prints a line on the terminal.
        pulse: the pulse of this process.
    """

    def __init__(self, world_rank: int, timeout_s: float, tell: Callable[[str], None], pulse: Pulse = PULSE) -> None:
        self.world_rank = world_rank
        self._timeout_s = timeout_s
        self._tell = tell
        self._pulse = pulse
        self._look_s = min(LOOK_S, LOOK_PART * timeout_s) if timeout_s else LOOK_S
        #: heartbeats of this process; None if the system does not support unnamed files in memory
        self.heart: Heart | None = None
        with suppress(OSError):
            self.heart = Heart()
        #: other running ranks of the node, in the order of their numbers
        self.peers: list[Peer] = []
        #: called with (world rank, cause) when a rank of the node died alone
        self._saw_death: Callable[[int, str], None] = lambda world_rank, how: None
        #: file for the stacks of this rank if it hangs; None: the terminal, because there is no run yet
        self._log: SafePath | None = None
        #: called after SIGTERM, with True if a rank of the node died before
        self._heard_sigterm: Callable[[bool], None] = lambda rank_died: None
        #: file descriptor to read signals from; -1 before `start`
        self._told_fd = -1
        #: True if all ranks are about to end, so that deaths are normal
        self._ends = False
        #: descriptor that becomes readable when mpirun or its daemon on this node ends; None: not visible
        self._starter: int | None = None
        self._own = self._new_watch()
        #: True if this rank reports slow work; seconds of that work at the last report, 0 before the first
        self._tells_work, self._told_s = False, 0.0
        self._of_peers: dict[int, Watch] = {}

    def watch(self, peers: Sequence[Peer]) -> None:
        """Also watch these ranks."""
        self.peers = sorted(peers, key=lambda peer: peer.world_rank)
        self._of_peers = {peer.world_rank: self._new_watch() for peer in self.peers}

    def _new_watch(self) -> Watch:
        return Watch(self._timeout_s, 2 * self._look_s)

    def report(self, saw_death: Callable[[int, str], None], log: SafePath | None, *, tells_work: bool = False) -> None:
        """Report deaths of ranks to `saw_death` from now on, and write the stacks of this rank to the file `log`.

        `tells_work`: report slow work of this rank on the terminal.
        """
        self._saw_death, self._log, self._tells_work = saw_death, log, tells_work

    def start(self) -> None:
        """Watch until the process ends. Call it in the main thread; a second call does nothing."""
        if self._told_fd >= 0:
            return
        self._starter = starter_of()
        if not (self._timeout_s or self.peers or self._starter is not None):
            return
        self._pulse.ticks += 1
        self._listen_for_the_end()
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def leave(self) -> None:
        """Stop reporting deaths, because all ranks are about to end. Collective: all ranks, before any ends."""
        self._ends = True
        self._pulse.expect(TOGETHER)

    def _listen_for_the_end(self) -> None:
        """Delay the end after SIGTERM, which mpirun sends to all ranks when one has died."""
        listening, told = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._told_fd = listening
        handle(signal.SIGTERM, _linger)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=_forget_signals)

    def tell_of_sigterm(self, heard_sigterm: Callable[[bool], None]) -> None:
        """Call `heard_sigterm` in the thread after SIGTERM, with True if a rank of the node died before."""
        self._heard_sigterm = heard_sigterm

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        poll = select.poll()
        for file in (self._told_fd, self._starter):
            if file is not None:
                poll.register(file, select.POLLIN)
        for peer in self.peers:
            poll.register(peer.process, select.POLLIN)
        while True:
            events = dict(poll.poll(1000 * self._look_s))
            if select.POLLNVAL in events.values():
                return  # user code has closed the files of this process, which will be ended for that
            ready = events.keys()
            if self._starter in ready:
                self._end_without_starter()
            for peer in [peer for peer in self.peers if peer.process in ready]:
                poll.unregister(peer.process)
            # Ranks linger after SIGTERM: one that is dead by now died before it.
            self._note_deaths()
            if self._told_fd in ready:
                self._hear()
            self._look(time.monotonic())

    def _hear(self) -> None:
        is_told = signal.SIGTERM in os.read(self._told_fd, 1 << 12)
        if is_told and not self._ends:
            self._heard_sigterm(len(self.peers) < len(self._of_peers))
        self._ends |= is_told
        if is_told and signal.getsignal(signal.SIGTERM) is _linger:
            # The handler only runs when the main thread returns to Python, which may never happen.
            time.sleep(2 * LINGER_S)
            os._exit(128 + signal.SIGTERM)

    def _note_deaths(self) -> None:
        """Forget the ranks of the node that have ended, and report one that died alone."""
        dead = [peer for peer in self.peers if peer.has_ended]
        if not dead:
            return
        self.peers = [peer for peer in self.peers if peer not in dead]
        if self._ends or len(dead) > 1 or not self._is_first():
            return
        time.sleep(ALONE_S)
        # If mpirun itself has died, its ranks follow one after another.
        is_alone = not any(peer.has_ended for peer in self.peers)
        if is_alone and (self._starter is None or not has_ended(self._starter)):
            self._saw_death(dead[0].world_rank, "its process died")

    def _is_first(self) -> bool:
        """Return True if this is the first rank of its node with a beating heart."""
        silent_s = 3 * self._look_s
        return not any(
            peer.world_rank < self.world_rank and self._of_peers[peer.world_rank].idle_s < silent_s
            for peer in self.peers
        )

    def _look(self, now_s: float) -> None:
        patience = self._pulse.patience
        if self.heart is not None:
            self.heart.beat(may_be_silent=patience == float("inf"))
        if not self._timeout_s:
            return
        for peer in self.peers:
            watch = self._of_peers[peer.world_rank]
            # Check the heartbeat first: checking for a stopped process reads a file.
            if watch.look(peer.beats, 1.0, now_s) and self._is_first() and self._hangs(peer, watch):
                self._end_peer(peer)
        if self._own.look(self._pulse.ticks, patience, now_s):
            self._end_own()
        self._tell_work(self._own.idle_s)

    def _tell_work(self, slow_s: float) -> None:
        if slow_s < self._told_s:
            self._told_s = 0.0
        if self._tells_work and self._pulse.doing and slow_s >= max(SLOW_S, 2 * self._told_s):
            self._told_s = slow_s
            self._tell(f"Rank {self.world_rank} {self._pulse.doing}: {slow_s:.0f} s so far.")

    def _hangs(self, peer: Peer, watch: Watch) -> bool:
        """Return True if a rank hangs, given that its heart has stopped for the time-out."""
        return peer.is_stopped or (not peer.may_be_silent and watch.idle_s > TOGETHER * self._timeout_s)

    def _end_peer(self, peer: Peer) -> None:
        how = "is stopped (SIGSTOP)" if peer.is_stopped else "is blocked, and its watchdog with it"
        self._tell(
            f"Rank {peer.world_rank} (process {peer.pid}) {how}, for longer than `--hang-timeout`, "
            f"{self._timeout_s:g} s: rank {self.world_rank} ends it."
        )
        peer.kill()

    def _end_without_starter(self) -> NoReturn:
        """End this rank, and kill ranks of the node that do not end by themselves."""
        with _last_words():
            if not self._ends:
                self._tell(f"mpirun, or its daemon on this node, has ended: rank {self.world_rank} ends, too.")
            until_s = time.monotonic() + LEAVE_S
            while time.monotonic() < until_s and not all(peer.has_ended for peer in self.peers):
                time.sleep(ALONE_S)
            for peer in self.peers:
                peer.kill()
        os._exit(EXIT_FAILURE)

    def _end_own(self) -> None:
        with _last_words():
            sentence = (
                f"Rank {self.world_rank} has done nothing for longer than `--hang-timeout`, {self._own.idle_s:.0f} s: "
                "its process is ended"
            )
            if self._log is None:
                self._tell(f"{sentence}. Its threads were at:\n{_stacks()}")
            else:
                with suppress(OSError):
                    self._log.parent.mkdir(exist_ok=True)
                    with self._log.open("a") as log:
                        log.write(f"{sentence}. Its threads were at:\n{_stacks()}")
                self._saw_death(self.world_rank, f"it did nothing for {self._own.idle_s:.0f} s (`--hang-timeout`)")
                self._tell(f"{sentence}. The stacks of its threads are in `{self._log}`.")
            os._exit(EXIT_FAILURE)


@contextmanager
def _last_words() -> Iterator[None]:
    """End this process by an alarm, which needs neither the interpreter nor the file system, if the code inside hangs.

    With ULFM, other ranks notice a death by a signal, but not an exit.
    """
    signal.alarm(math.ceil(LAST_WORDS_S))
    with open(os.devnull, "w") as nowhere:
        faulthandler.dump_traceback_later(LAST_WORDS_S + LATER_S, exit=True, file=nowhere)
        yield


def _stacks() -> str:
    """Return the stacks of all threads of this process."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


def _linger(signum: int, frame: Any) -> None:
    time.sleep(LINGER_S)
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


def _forget_signals() -> None:
    """Reset the signals in a process forked by user code."""
    with suppress(ValueError):  # not from a main thread
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGTERM) is _linger:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
