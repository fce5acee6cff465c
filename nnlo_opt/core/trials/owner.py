"""Ownership of a run directory: a note (`run.owner`) names the running process, so that others can tell if it is alive.

The note has host, process and boot ID; its owner touches it every `BEAT_S`, and removes it at the end. A process in the
same PID namespace and boot is identified by its number and start time. Any other counts as alive while its note is
touched, and as dead after `STALE_S` without a touch, by the clock of the file system. If it was only asleep (a
suspended machine, a network failure), it notices the new owner before its next write, and exits.
"""

import errno
import hashlib
import logging
import math
import os
import socket
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.files import atomic_write, with_checksum, without_checksum, write_fully
from nnlo_opt.core.base.safe_path import SafePath

logger = logging.getLogger(__name__)

#: seconds between two heartbeats; seconds without one until an owner on another machine counts as dead. Network file
#: systems show the time of a file up to a minute late
BEAT_S, STALE_S = 20.0, 300.0
#: seconds between two checks of an owner that may end
POLL_S = 0.05
OWNER_NAME = "run.owner"
#: keys of a note of the first version, which had neither a checksum nor a heartbeat
_FIRST_NOTE = frozenset({"host", "pid", "boot"})
_BOOT = Path("/proc/sys/kernel/random/boot_id")
#: bytes of a unique file name
_HASH_BYTES = 6


class Owner:
    """This process as the owner of a folder.

    Args:
        note: file that names the owner, such as `run.owner`.
        role: coordinator or launcher, for messages.
    """

    def __init__(self, note: SafePath, role: str = "coordinator") -> None:
        self._note = note
        self._role = role
        self.mine = this_process()
        #: time at which the note last named this process
        self._seen_at_s = now_s()
        #: description of the process that has taken over the run; empty if none has
        self._lost_to = ""
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._beat, name=note.name, daemon=True)

    def take_over(self) -> None:
        """Write the note, where a lock excludes all other processes of this machine.

        Raises:
            ConfigurationError: an owner on another machine is alive.
        """
        owner = read_note(self._note)
        # Only the host matches: it was rebooted. Only the boot matches: a container with another name on the same
        # machine.
        if owner is not None and not is_of_this_machine(owner, self.mine):
            self._outwait(owner)
        atomic_write(self._note, with_checksum(self.mine))
        self._thread.start()

    def claim(self, timeout_s: float) -> None:
        """Write the note, where there are no locks; of several concurrent processes exactly one succeeds.

        Args:
            timeout_s: seconds to wait for an owner in this PID namespace to end.

        Raises:
            TimeoutError: it is alive.
            ConfigurationError: an owner elsewhere is alive.
        """
        until_s = time.monotonic() + timeout_s
        while True:
            content = _content(self._note)
            owner = _named_in(content)
            alive = owner is not None and is_alive(owner)
            if owner is not None and alive is None:
                self._outwait(owner)
            if not alive and self._succeed(content):
                break
            if time.monotonic() >= until_s:
                raise TimeoutError(errno.ETIMEDOUT, "another process owns it", str(self._note))
            time.sleep(POLL_S)
        self._thread.start()

    def _succeed(self, before: bytes) -> bool:
        """Succeed the dead owner of the note `before`; return False if another process is faster.

        Each note has one successor: the process that creates the file named by its hash. If that process died before
        writing the note, its file replaces the note.
        """
        text = with_checksum(self.mine).encode()
        content, chain, claims = before, b"", list[SafePath]()
        while True:
            chain = hashlib.sha256(chain + content).digest()
            claims.append(self._note.with_name(f".{self._note.name}.{chain[:_HASH_BYTES].hex()}"))
            try:
                fd = claims[-1].descriptor(os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                content = _content(claims[-1])
                if _is_fresh(claims[-1]):
                    return False
            else:
                break
        try:
            write_fully(fd, text)
        finally:
            os.close(fd)
        if has_won := _content(self._note) == before:
            atomic_write(self._note, text)
        for claim in claims if has_won else claims[-1:]:
            claim.unlink(missing_ok=True)
        return has_won

    def _outwait(self, owner: dict[str, Any]) -> None:
        """Wait until an owner that is not visible from here counts as dead; ConfigurationError if it is alive."""
        # An owner of an older version has no heartbeat.
        remedy = f"make sure that it has ended, then remove `{self._note}`"
        touched = touched_ns(self._note) if owner.get("beat_s") else None
        if touched is not None:
            remedy = f"wait for it to end; or {remedy}"
            logger.warning(
                "`%s` belongs to another %s%s: waiting for its heartbeat, or for %g s without one.",
                self._note.parent,
                self._role,
                in_words(owner),
                STALE_S,
            )
            while touched_ns(self._note) == touched and _silent_s(self._note) < STALE_S:
                time.sleep(min(2.0, BEAT_S / 4))
            if touched_ns(self._note) in (touched, None):
                logger.warning("The %s%s has no heartbeat any more: taking over its run.", self._role, in_words(owner))
                return
        raise ConfigurationError(
            f"A run directory has one {self._role} at a time, and `{self._note.parent}` belongs to another "
            f"one{in_words(owner)}. This machine ({self.mine['host']}) can tell only by its heartbeat whether it is "
            f"alive: {remedy}."
        )

    def _beat(self) -> None:
        while not self._released.wait(BEAT_S):
            with suppress(OSError):  # the run or its disk may be gone: the next write will notice
                self._look()
                self._note.touch()

    def _look(self) -> None:
        """Raise OSError if the run has another owner."""
        owner = read_note(self._note)
        if owner is not None and owner != self.mine:
            self._lost_to = in_words(owner)
            raise OSError(errno.ESTALE, f"another {self._role} has taken the run over{self._lost_to}")
        self._seen_at_s = now_s()

    def check(self) -> None:
        """Raise OSError, before a write, if another process took over the run while this one was suspended."""
        if self._lost_to or now_s() - self._seen_at_s > 2 * BEAT_S:
            self._look()

    def close(self) -> None:
        """Remove the note."""
        self._released.set()
        if self._thread.ident is not None:
            self._thread.join(2.0)  # on a file system that hangs, the thread is abandoned
        with suppress(OSError):  # the directory may be gone or read-only
            self._look()
            self._note.unlink()


# ---------------------------------------------------------------- processes


def this_process() -> dict[str, Any]:
    """Return the note of this process."""
    boot = namespace = ""
    with suppress(OSError):
        boot = _BOOT.read_text().strip()
    with suppress(OSError):
        namespace = os.readlink("/proc/self/ns/pid")
    host, pid = socket.gethostname(), os.getpid()
    facts = {"started": _started(pid), "namespace": namespace}
    return {"host": host, "pid": pid, "boot": boot or host, "beat_s": BEAT_S, **facts}


def is_of_this_machine(owner: dict[str, Any], here: dict[str, Any]) -> bool:
    """Return True if an owner is, or was, a process of this machine."""
    return owner.get("boot") == here["boot"] or owner.get("host") == here["host"]


def is_alive(owner: dict[str, Any]) -> bool | None:
    """Return True if a process visible from here is alive, False if it has ended; None for any other process."""
    here = this_process()
    if any(owner.get(name) != here[name] or not here[name] for name in ("boot", "namespace")):
        return None
    pid, started = owner.get("pid"), _started(owner.get("pid"))
    if not started and isinstance(pid, int):
        try:
            os.kill(pid, 0)
        except PermissionError:  # another user's process, hidden by `hidepid` of /proc
            return None
        except OSError:
            return False
    return bool(started) and started == owner.get("started")


def _started(pid: object) -> str:
    """Return the start time of a process in ticks since boot; empty if it has ended."""
    with suppress(OSError):
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if state in "ZX" else fields[18]
    return ""


def now_s() -> float:
    """Return the seconds of a clock that includes time in suspend."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


# ---------------------------------------------------------------- notes


def read_owner(run: Path) -> dict[str, Any] | None:
    """Return the owner of a run; None without a readable note: a damaged one excludes nobody."""
    return read_note(SafePath(run) / OWNER_NAME)


def read_note(note: SafePath) -> dict[str, Any] | None:
    """Return the process that a note names; None without a readable note."""
    return _named_in(_content(note))


def forget_owner(run: Path) -> None:
    """Remove the note of an owner that is known to have ended, on any machine."""
    with suppress(OSError):
        (SafePath(run) / OWNER_NAME).unlink()


def beats(note: SafePath) -> bool:
    """Return True if a note was touched within `STALE_S`."""
    return time.time() - (touched_ns(note) or 0) / 1e9 < STALE_S


def in_words(owner: dict[str, Any] | None) -> str:
    """Return " (process 1 on node-1)"; empty without an owner."""
    return "" if owner is None else f" (process {owner.get('pid')} on {owner.get('host')})"


def touched_ns(path: SafePath) -> int | None:
    """Return the time at which the file was touched; None without a file."""
    try:
        with path.open("rb") as file:  # opening makes a network file system refresh the times
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None


def _silent_s(path: SafePath) -> float:
    """Return the seconds since the file was touched, by the file system's clock; infinite without a file."""
    touched = touched_ns(path)
    if touched is None:
        return math.inf
    probe = path.with_name(f".{path.name[:24]}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        probe.write_bytes(b"")
        return (probe.stat().st_mtime_ns - touched) / 1e9
    finally:
        probe.unlink(missing_ok=True)


def _is_fresh(claim: SafePath) -> bool:
    """Return True if the process that created this file may be alive; at first the file is empty."""
    owner = read_note(claim)
    alive = None if owner is None else is_alive(owner)
    return _silent_s(claim) < STALE_S if alive is None else alive


def _named_in(content: bytes) -> dict[str, Any] | None:
    with suppress(ValueError):
        return without_checksum(content, _FIRST_NOTE)
    return None


def _content(note: SafePath) -> bytes:
    """Return the content of a note; empty without one."""
    with suppress(OSError):
        return note.read_bytes()
    return b""
