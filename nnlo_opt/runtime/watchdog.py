"""A watchdog in every rank: a thread that ends what hangs, so that a hung rank is a dead one, which others notice.

It watches its own process by the pulse (`runtime.pulse`), and the other ranks of the node by their heartbeats: a
process that was stopped (SIGSTOP), or whose interpreter is blocked in C code, cannot watch itself. The first rank of a
node whose heart beats ends such a one. It also sees which rank of the node ends first when a job dies, which nobody
else could say without ULFM.

Time counts as far as the watchdog itself was running: a job that was suspended as a whole goes on when it is woken.
"""

import faulthandler
import math
import os
import select
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nnlo_opt.errors import EXIT_FAILURE
from nnlo_opt.runtime.peers import Heart, Peer
from nnlo_opt.runtime.pulse import PULSE, TOGETHER, Pulse
from nnlo_opt.runtime.signals import handle

#: seconds between two looks, at most; and part of the time-out
LOOK_S, LOOK_PART = 2.0, 0.1
#: a rank that was told to end by SIGTERM does so after this, for its watchdog to say what it saw; mpirun leaves it half
#: a second
LINGER_S = 0.2
#: a death is that of one rank, and not of the whole job, where so long after it no other has followed
ALONE_S = 0.05
#: seconds for the stacks of a hung rank to be written, to a file system that may hang as well; and so much later it
#: ends also where somebody else hears the signal
LAST_WORDS_S, LATER_S = 10.0, 2.0


@dataclass(slots=True)
class Watch:
    """How long nothing has moved; pure."""

    timeout_s: float
    #: longest time between two looks that counts: more of it the watcher itself was not running
    longest_gap_s: float
    #: as it was at the last look, and when that was; None before
    _count: int = -1
    _looked_at_s: float | None = None
    #: seconds since it has moved
    idle_s: float = 0.0

    def look(self, count: int, patience: float, now_s: float) -> bool:
        """Whether `count` has stood still for longer than `patience` times the time-out."""
        gap_s = 0.0 if self._looked_at_s is None else min(now_s - self._looked_at_s, self.longest_gap_s)
        self.idle_s = self.idle_s + gap_s if count == self._count else 0.0
        self._count, self._looked_at_s = count, now_s
        return self.idle_s > patience * self.timeout_s


class Watchdog:
    """Of one rank; `heart.handle` is given to the others of the node, whose handles become its `peers`."""

    def __init__(self, world_rank: int, timeout_s: float, tell: Callable[[str], None], pulse: Pulse = PULSE) -> None:
        """`timeout_s` of 0: nothing is ended for hanging. `tell` shows a sentence to people."""
        self.world_rank = world_rank
        self._timeout_s = timeout_s
        self._tell = tell
        self._pulse = pulse
        self._look_s = min(LOOK_S, LOOK_PART * timeout_s) if timeout_s else LOOK_S
        #: None where the system has no such thing
        self.heart: Heart | None = None
        with suppress(OSError):
            self.heart = Heart()
        #: the other ranks of the node that have not ended, by their numbers
        self.peers: list[Peer] = []
        #: called with a rank of the node that died by itself, and how
        self._saw_death: Callable[[int, str], None] = _ignore
        #: file for the stacks of this rank if it hangs; None: the terminal, as there is no run yet
        self._log: Path | None = None
        self._has_begun = False
        #: written to by signals
        self._told_fd = -1
        #: whether this rank, and so the others, is about to end: deaths tell nothing any more
        self._ends = False
        self._parent = os.getppid()
        self._own = self._new_watch()
        self._of_peers: dict[int, Watch] = {}

    def watch(self, peers: Sequence[Peer]) -> None:
        """Watch these too."""
        self.peers = sorted(peers, key=lambda peer: peer.world_rank)
        self._of_peers = {peer.world_rank: self._new_watch() for peer in self.peers}

    def _new_watch(self) -> Watch:
        return Watch(self._timeout_s, 2 * self._look_s)

    def report(self, saw_death: Callable[[int, str], None], log: Path | None) -> None:
        """Report from now on to an open run: deaths of ranks to `saw_death`, the stacks of this rank to the file `log`."""
        self._saw_death, self._log = saw_death, log

    def start(self) -> None:
        """Begin, until the process ends. A second call does nothing. From the main thread."""
        if self._has_begun or not (self._timeout_s or self.peers):
            return
        self._has_begun = True
        self._pulse.ticks += 1
        self._listen_for_the_end()
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def leave(self) -> None:
        """The run is over, and all ranks are about to end. Collective: every rank, before any does."""
        self._ends = True
        self._pulse.expect(TOGETHER)

    def _listen_for_the_end(self) -> None:
        """Take SIGTERM, by which mpirun ends the other ranks when one has died, a moment later than it comes."""
        listening, told = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._told_fd = listening
        handle(signal.SIGTERM, _linger)
        signal.set_wakeup_fd(told, warn_on_full_buffer=False)
        os.register_at_fork(after_in_child=_forget_signals)

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._told_fd, select.POLLIN)
        for peer in self.peers:
            poll.register(peer.process, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll(1000 * self._look_s)}
            for peer in [peer for peer in self.peers if peer.process in ready]:
                poll.unregister(peer.process)
            # A rank that is told to end lingers: one that is dead already when we hear of it died before.
            self._note_deaths()
            if self._told_fd in ready:
                self._hear()
            self._look(time.monotonic())

    def _hear(self) -> None:
        is_told = signal.SIGTERM in os.read(self._told_fd, 1 << 12)
        self._ends |= is_told
        if is_told and signal.getsignal(signal.SIGTERM) is _linger:
            # The handler runs when the main thread comes back to Python, which may be never.
            time.sleep(2 * LINGER_S)
            os._exit(128 + signal.SIGTERM)

    def _note_deaths(self) -> None:
        """Take in which ranks of the node have ended; say of one that died alone that it did."""
        dead = [peer for peer in self.peers if peer.has_ended]
        if not dead:
            return
        self.peers = [peer for peer in self.peers if peer not in dead]
        if self._ends or len(dead) > 1 or not self._is_first():
            return
        time.sleep(ALONE_S)
        # Where mpirun itself has died its ranks follow, one after another.
        if not any(peer.has_ended for peer in self.peers) and os.getppid() == self._parent:
            self._saw_death(dead[0].world_rank, "its process died")

    def _is_first(self) -> bool:
        """Whether no rank before this one on its node has a beating heart."""
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
            # Whether it is stopped takes a look into its files, which those whose hearts beat are spared.
            if watch.look(peer.beats, 1.0, now_s) and self._is_first() and self._hangs(peer, watch):
                self._end_peer(peer)
        if self._own.look(self._pulse.ticks, patience, now_s):
            self._end_own()

    def _hangs(self, peer: Peer, watch: Watch) -> bool:
        """Of one whose heart has stood still for the time-out."""
        return peer.is_stopped or (not peer.may_be_silent and watch.idle_s > TOGETHER * self._timeout_s)

    def _end_peer(self, peer: Peer) -> None:
        how = "is stopped (SIGSTOP)" if peer.is_stopped else "is blocked, and its watchdog with it"
        self._tell(
            f"Rank {peer.world_rank} (process {peer.pid}) {how}, for longer than `--hang-timeout`, "
            f"{self._timeout_s:g} s: rank {self.world_rank} ends it."
        )
        peer.kill()

    def _end_own(self) -> None:
        # Whatever the words take, the process ends: this needs neither the interpreter nor the file system. By a
        # signal, which the others hear of where ranks outlive others, and do not of an exit.
        signal.alarm(math.ceil(LAST_WORDS_S))
        with open(os.devnull, "w") as nowhere:
            faulthandler.dump_traceback_later(LAST_WORDS_S + LATER_S, exit=True, file=nowhere)
            sentence = (
                f"Rank {self.world_rank} has done nothing for longer than `--hang-timeout`, {self._own.idle_s:.0f} s: "
                "its process is ended"
            )
            if self._log is None:
                self._tell(f"{sentence}, where its threads were in:\n{_stacks()}")
            else:
                with suppress(OSError):
                    self._log.parent.mkdir(parents=True, exist_ok=True)
                    with self._log.open("a") as log:
                        log.write(f"{sentence}; its threads were in:\n{_stacks()}")
                self._saw_death(self.world_rank, f"it did nothing for {self._own.idle_s:.0f} s (`--hang-timeout`)")
                self._tell(f"{sentence}; the stacks of its threads are in `{self._log}`.")
            os._exit(EXIT_FAILURE)


def _stacks() -> str:
    """What all threads of this process are in."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


def _ignore(world_rank: int, how: str) -> None: ...


def _linger(signum: int, frame: Any) -> None:
    time.sleep(LINGER_S)
    signal.signal(signum, signal.SIG_DFL)
    os.kill(os.getpid(), signum)


def _forget_signals() -> None:
    """In a process that a user's code has forked: its signals are its own."""
    with suppress(ValueError):  # not from a main thread
        signal.set_wakeup_fd(-1)
        if signal.getsignal(signal.SIGTERM) is _linger:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
