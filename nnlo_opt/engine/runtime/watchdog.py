"""Watchdog of a rank: a thread that ends a hung process, so that other ranks notice a death instead of waiting.

The watchdog watches its own process by the pulse (`pulse`), and the other ranks of the node by their
heartbeats: a process that was stopped (SIGSTOP), or whose interpreter is blocked in C code, cannot watch itself. The
first rank of the node with a beating heart ends a process like this. The watchdog also sees which rank of the node ends
first when a job dies; without ULFM nothing else can tell. If mpirun has been killed, or its daemon on this node, the
watchdog ends its rank, which MPI does not reach while it computes (`engine.runtime.starter`).

Only time in which the watchdog itself was running counts: a job that was suspended as a whole continues when it wakes.
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

#: longest time between two looks: seconds, and part of the time-out
LOOK_S, LOOK_PART = 2.0, 0.1
#: seconds of slow work before the first line that says what it is; each further line comes after twice as long
SLOW_S = 10.0
#: seconds after SIGTERM at which a rank ends, so that its watchdog can report what it saw; mpirun grants half a second
LINGER_S = 0.2
#: seconds after a death in which no other rank may die, if the death is of one rank and not of the whole job
ALONE_S = 0.05
#: seconds in which the stacks of a hung rank are written, to a file system that may hang as well; and seconds later at
#: which the rank ends even if another handler takes the signal
LAST_WORDS_S, LATER_S = 10.0, 2.0
#: seconds in which ranks end by themselves whose mpirun has been killed; one that is blocked is ended by another one
LEAVE_S = 1.0


@dataclass(slots=True)
class Watch:
    """Watch over a counter, which measures how long the counter has stood still; pure."""

    timeout_s: float
    #: longest time between two looks that counts: in any time beyond, the watchdog itself was not running
    longest_gap_s: float
    #: count at the last look, and time of that look; None before
    _count: int = -1
    _looked_at_s: float | None = None
    #: seconds since the counter moved
    idle_s: float = 0.0

    def look(self, count: int, patience: float, now_s: float) -> bool:
        """Return True if `count` has stood still for longer than `patience` times the time-out."""
        gap_s = 0.0 if self._looked_at_s is None else min(now_s - self._looked_at_s, self.longest_gap_s)
        self.idle_s = self.idle_s + gap_s if count == self._count else 0.0
        self._count, self._looked_at_s = count, now_s
        return self.idle_s > patience * self.timeout_s


class Watchdog:
    """Watchdog of one rank. The rank gives `heart.handle` to the other ranks of its node, and watches theirs.

    Args:
        world_rank: number of the rank.
        timeout_s: `--hang-timeout` in seconds; 0: no process is ended for hanging.
        tell: shows a sentence on the terminal.
        pulse: the pulse of this process.
    """

    def __init__(self, world_rank: int, timeout_s: float, tell: Callable[[str], None], pulse: Pulse = PULSE) -> None:
        self.world_rank = world_rank
        self._timeout_s = timeout_s
        self._tell = tell
        self._pulse = pulse
        self._look_s = min(LOOK_S, LOOK_PART * timeout_s) if timeout_s else LOOK_S
        #: heartbeats of this process; None if the system has no memory without a name
        self.heart: Heart | None = None
        with suppress(OSError):
            self.heart = Heart()
        #: other ranks of the node that have not ended, in the order of their numbers
        self.peers: list[Peer] = []
        #: called with a rank of the node that died by itself, and how
        self._saw_death: Callable[[int, str], None] = lambda world_rank, how: None
        #: file for the stacks of this rank if it hangs; None: the terminal, as there is no run yet
        self._log: SafePath | None = None
        #: called when SIGTERM comes, with True if a rank of the node has died before
        self._heard_sigterm: Callable[[bool], None] = lambda rank_died: None
        #: file descriptor from which signals are read; -1 before `start`
        self._told_fd = -1
        #: True if this rank is about to end, and so all ranks: a death means nothing any more
        self._ends = False
        #: descriptor that is readable once mpirun, or its daemon on this node, has ended; None: there is none to see
        self._starter: int | None = None
        self._own = self._new_watch()
        #: True if this rank says what slow work it does; seconds of that work at the last such line, 0 before one
        self._tells_work, self._told_s = False, 0.0
        self._of_peers: dict[int, Watch] = {}

    def watch(self, peers: Sequence[Peer]) -> None:
        """Watch these ranks, too."""
        self.peers = sorted(peers, key=lambda peer: peer.world_rank)
        self._of_peers = {peer.world_rank: self._new_watch() for peer in self.peers}

    def _new_watch(self) -> Watch:
        return Watch(self._timeout_s, 2 * self._look_s)

    def report(self, saw_death: Callable[[int, str], None], log: SafePath | None, *, tells_work: bool = False) -> None:
        """Report deaths of ranks to `saw_death` from now on, and write the stacks of this rank to the file `log`.

        `tells_work`: slow work of this rank is shown on the terminal.
        """
        self._saw_death, self._log, self._tells_work = saw_death, log, tells_work

    def start(self) -> None:
        """Watch until the process ends. To be called in the main thread; a second call does nothing."""
        if self._told_fd >= 0:
            return
        self._starter = starter_of()
        if not (self._timeout_s or self.peers or self._starter is not None):
            return
        self._pulse.ticks += 1
        self._listen_for_the_end()
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def leave(self) -> None:
        """Report no death any more, as all ranks are about to end. Collective: every rank, before one of them ends."""
        self._ends = True
        self._pulse.expect(TOGETHER)

    def _listen_for_the_end(self) -> None:
        """Let this rank end a moment after SIGTERM, by which mpirun ends all ranks when one has died."""
        listening, told = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._told_fd = listening
        handle(signal.SIGTERM, _linger)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=_forget_signals)

    def tell_of_sigterm(self, heard_sigterm: Callable[[bool], None]) -> None:
        """Call `heard_sigterm` in the thread when SIGTERM comes, with True if a rank of the node has died before."""
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
                return  # user code has closed the files of this process, which is ended for that
            ready = events.keys()
            if self._starter in ready:
                self._end_without_starter()
            for peer in [peer for peer in self.peers if peer.process in ready]:
                poll.unregister(peer.process)
            # A rank lingers after SIGTERM: a rank that is dead already when SIGTERM comes here died before.
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
            # The handler runs when the main thread returns to Python, which it may never do.
            time.sleep(2 * LINGER_S)
            os._exit(128 + signal.SIGTERM)

    def _note_deaths(self) -> None:
        """Drop the ranks of the node that have ended, and report a rank that died alone."""
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
        """Return True if no rank before this one on its node has a beating heart."""
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
            # A rank whose heart beats is not asked whether it is stopped, which takes a look into a file.
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
        """Return True if a rank hangs whose heart has stood still for the time-out."""
        return peer.is_stopped or (not peer.may_be_silent and watch.idle_s > TOGETHER * self._timeout_s)

    def _end_peer(self, peer: Peer) -> None:
        how = "is stopped (SIGSTOP)" if peer.is_stopped else "is blocked, and its watchdog with it"
        self._tell(
            f"Rank {peer.world_rank} (process {peer.pid}) {how}, for longer than `--hang-timeout`, "
            f"{self._timeout_s:g} s: rank {self.world_rank} ends it."
        )
        peer.kill()

    def _end_without_starter(self) -> NoReturn:
        """End this rank, and the ranks of the node that do not end by themselves."""
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
    """End this process however long the code inside takes: an alarm needs neither the interpreter nor the file system.

    A death by a signal is noticed by the other ranks if ranks outlive others, an exit is not.
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
    """Reset the signals in a process that a user's code has forked."""
    with suppress(ValueError):  # not from a main thread
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGTERM) is _linger:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
