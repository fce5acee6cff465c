"""Lock of a run directory: one coordinator at a time, by a lock of the operating system with a note of its owner.

The lock (`run.lock`) goes with the process that held it, however that died, so among processes of one machine it is the
truth. Between machines it may be worth nothing, as file systems are often mounted without locks across machines. So
the owner writes host, process and boot of its machine to `run.owner`, touches it every `BEAT_S`, and removes it at the
end. An owner of this machine whose lock is free is gone. One of another machine is alive while its file is touched, and
assumed dead when that was `STALE_S` ago, by the clock of the file system. If it was not dead but asleep (a suspended
machine, a network that was cut), it finds another owner's name before it writes anything, and ends.
"""

import errno
import fcntl
import logging
import math
import os
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.files import atomic_write, make_directory, with_checksum, without_checksum
from nnlo_opt.runtime.process import refuse_forked
from nnlo_opt.safe_path import SafePath

logger = logging.getLogger(__name__)

#: seconds between two signs of life; seconds without one until an owner on another machine is assumed dead. File
#: systems of networks show the time of a file up to a minute late
BEAT_S, STALE_S = 20.0, 300.0
#: seconds between two attempts to take a lock
_POLL_S = 0.05
LOCK_NAME = "run.lock"
OWNER_NAME = "run.owner"
LAUNCH_LOCK_NAME = "launch.lock"
#: names in a note of the first version, which had neither a checksum nor a beat
_FIRST_NOTE = frozenset({"host", "pid", "boot"})
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class _FileLock:
    """Lock of the operating system on a file, which is created. It is freed when its process dies.

    Raises:
        TimeoutError: another process has held it for `timeout_s` seconds.
    """

    def __init__(self, path: SafePath, timeout_s: float) -> None:
        self._fd = path.descriptor(os.O_RDWR | os.O_CREAT)
        until_s = time.monotonic() + timeout_s
        while not _locked(self._fd, fcntl.LOCK_EX):
            if time.monotonic() >= until_s:
                os.close(self._fd)
                raise TimeoutError(errno.ETIMEDOUT, "another process holds the lock", str(path))
            time.sleep(_POLL_S)

    def release(self) -> None:
        """Free the lock, which a child that was forked does not keep."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)


def _locked(fd: int, kind: int) -> bool:
    """Lock an open file unless another process has done so; return True if it is locked."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


class RunLock:
    """Right to write to a run directory, acquired by the constructor.

    Args:
        run: the run directory.
        timeout_s: seconds to wait for a process of this machine to release it.

    Raises:
        ConfigurationError: another coordinator holds it.
        OSError: the directory is not writable.
    """

    def __init__(self, run: Path, timeout_s: float) -> None:
        self._owner = SafePath(run) / OWNER_NAME
        self._mine = this_process()
        #: time at which `run.owner` was last seen to name this process
        self._seen_at_s = _now_s()
        #: the process that has taken the run over, in words; empty while none has
        self._lost_to = ""
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="run.owner", daemon=True)
        try:
            self._lock = _FileLock(SafePath(run) / LOCK_NAME, timeout_s)
        except TimeoutError:
            raise ConfigurationError(
                f"A run directory has one coordinator at a time, and another process holds `{run}`"
                f"{in_words(read_owner(self._owner.root))}: wait for it to end, or choose another name by "
                "`--checkpoint NAME`."
            ) from None
        try:
            self._take_over()
            atomic_write(self._owner, with_checksum(self._mine))
        except BaseException:
            self._lock.release()
            raise
        self._thread.start()

    def _take_over(self) -> None:
        """Wait until an owner on another machine is known to be dead; ConfigurationError if it is alive."""
        owner, here = read_owner(self._owner.root), self._mine
        # The host alone: it was booted since. The boot alone: a container of another name on the same machine.
        if owner is None or owner.get("boot") == here["boot"] or owner.get("host") == here["host"]:
            return
        # An owner of an older version gives no signs of life.
        remedy = f"make sure that it has ended, then remove `{self._owner}`"
        touched_ns = _touched_ns(self._owner) if owner.get("beat_s") else None
        if touched_ns is not None:
            remedy = f"wait for it to end; or {remedy}"
            logger.warning(
                "`%s` belongs to another coordinator%s: waiting for a sign of life of it, or %g s without one.",
                self._owner.parent,
                in_words(owner),
                STALE_S,
            )
            while _touched_ns(self._owner) == touched_ns and _silent_s(self._owner) < STALE_S:
                time.sleep(min(2.0, BEAT_S / 4))
            if _touched_ns(self._owner) in (touched_ns, None):
                logger.warning("The coordinator%s gives no sign of life: its run is taken over.", in_words(owner))
                return
        raise ConfigurationError(
            f"A run directory has one coordinator at a time, and `{self._owner.parent}` belongs to another "
            f"one{in_words(owner)}, of which this machine ({here['host']}) cannot see whether it is alive, but for "
            f"its signs of life: {remedy}."
        )

    def _beat(self) -> None:
        while not self._released.wait(BEAT_S):
            with suppress(OSError):  # the run or its disk may be gone: the next write finds out
                self._look()
                self._owner.touch()

    def _look(self) -> None:
        """Raise OSError if the run has another owner."""
        owner = read_owner(self._owner.root)
        if owner is not None and owner != self._mine:
            self._lost_to = in_words(owner)
            raise OSError(errno.ESTALE, f"another coordinator has taken the run over{self._lost_to}")
        self._seen_at_s = _now_s()

    def check(self) -> None:
        """Raise OSError, before a write, if another process has taken the run over while this one slept.

        Raises ConfigurationError in a process that was forked from the owner.
        """
        refuse_forked(self._mine["pid"], f"The run `{self._owner.parent}`", "Leave all writing to the latter.")
        if self._lost_to or _now_s() - self._seen_at_s > 2 * BEAT_S:
            self._look()

    def close(self) -> None:
        """Release the run; a process that was forked from the owner leaves it alone."""
        if os.getpid() != self._mine["pid"]:
            return
        self._released.set()
        self._thread.join(2.0)  # of a file system that hangs, the thread may be left behind
        with suppress(OSError):  # the directory may be gone, or read-only by now: the lock says enough here
            self._look()
            self._owner.unlink()
        self._lock.release()


def forget_owner(run: Path) -> None:
    """Remove the note of an owner that is known to be gone, on any machine."""
    with suppress(OSError):
        (SafePath(run) / OWNER_NAME).unlink()


def may_be_at_work(run: Path) -> bool:
    """Return True if a run has an owner: a process of this machine that lives, or one that has shown signs of life."""
    owner, here = read_owner(run), this_process()
    if owner is None:
        return False
    if owner.get("boot") != here["boot"] and owner.get("host") != here["host"]:
        return time.time() - (_touched_ns(SafePath(run) / OWNER_NAME) or 0) / 1e9 < STALE_S
    with suppress(OSError), (SafePath(run) / LOCK_NAME).open("rb") as file:
        return not _locked(file.fileno(), fcntl.LOCK_SH)
    return False


@contextmanager
def launcher_of(path: Path) -> Iterator[None]:
    """Hold a run directory for its launcher during a `with` block; at the end an empty one is removed.

    Raises:
        ConfigurationError: another launcher holds it.
    """
    try:
        make_directory(path)
        lock = _FileLock(SafePath(path) / LAUNCH_LOCK_NAME, 0.0)
    except TimeoutError:
        raise ConfigurationError(
            f"A run has one launcher at a time, and another one is at work on `{path}`: wait for it to end, or choose "
            "another name by `--checkpoint NAME`."
        ) from None
    except OSError as error:
        raise not_writable(path, error) from None
    try:
        yield
    finally:
        with suppress(OSError):
            if os.listdir(path) == [LAUNCH_LOCK_NAME]:
                (SafePath(path) / LAUNCH_LOCK_NAME).unlink()
                path.rmdir()
        lock.release()


def not_writable(path: Path, error: OSError) -> ConfigurationError:
    """Return the error to raise for the run directory `path`, in which `error` has prevented a write."""
    return ConfigurationError(
        f"The run directory must be writable. Received: `{path}` ({error.strerror or error}); choose another place by "
        "`--checkpoint DIR/NAME`."
    )


def this_process() -> dict[str, Any]:
    """Return the content of `run.owner` for this process."""
    boot = ""
    with suppress(OSError):
        boot = _BOOT.read_text().strip()
    host = socket.gethostname()
    return {"host": host, "pid": os.getpid(), "boot": boot or host, "beat_s": BEAT_S}


def _now_s() -> float:
    """Return seconds of a clock that continues while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def _touched_ns(path: SafePath) -> int | None:
    """Return the time at which the file was touched; None without a file."""
    try:
        with path.open("rb") as file:  # opening makes a file system of a network ask for the times anew
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return None


def _silent_s(path: SafePath) -> float:
    """Return the seconds since the file was touched, by the clock that set its time; infinite without a file."""
    touched_ns = _touched_ns(path)
    if touched_ns is None:
        return math.inf
    probe = path.with_name(f".{path.name}.{uuid.uuid4().hex[:12]}.tmp")
    try:
        probe.write_bytes(b"")
        return (probe.stat().st_mtime_ns - touched_ns) / 1e9
    finally:
        probe.unlink(missing_ok=True)


def read_owner(run: Path) -> dict[str, Any] | None:
    """Return the owner of a run; None without a readable note: a damaged one keeps nobody out."""
    with suppress(OSError, ValueError):
        return without_checksum((SafePath(run) / OWNER_NAME).read_bytes(), _FIRST_NOTE)
    return None


def in_words(owner: dict[str, Any] | None) -> str:
    """Return " (process 1 on node-1)"; empty without an owner."""
    return "" if owner is None else f" (process {owner.get('pid')} on {owner.get('host')})"
