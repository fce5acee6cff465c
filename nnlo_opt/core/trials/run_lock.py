"""Lock of a run directory: one coordinator at a time, by an operating system lock and an owner's note.

The lock (`run.lock`) is released when its process dies in any way, so it is reliable among processes of one machine. It
may have no effect between machines, because file systems are often mounted without cross-machine locks, and some have
no locks. Then the owner's note decides (`core.trials.owner`).
"""

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nnlo_opt.core.base.errors import ConfigurationError, refuse_forked
from nnlo_opt.core.base.files import NO_LOCKS, make_directory
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.base.spelling import spelled
from nnlo_opt.core.trials.owner import (
    OWNER_NAME,
    POLL_S,
    Owner,
    beats,
    in_words,
    is_alive,
    is_of_this_machine,
    read_owner,
    this_process,
)
from nnlo_opt.core.trials.sharing import may_be_shared_now

logger = logging.getLogger(__name__)

LOCK_NAME = "run.lock"
LAUNCH_LOCK_NAME = "launch.lock"
#: note of a launcher on file systems without locks
LAUNCH_OWNER_NAME = "launch.owner"


class _FileLock:
    """Operating system lock on a file, which is created; released when the process dies.

    Raises:
        TimeoutError: another process has held it for `timeout_s` seconds.
        OSError: the file system has no locks (`NO_LOCKS`), or any other error.
    """

    def __init__(self, path: SafePath, timeout_s: float) -> None:
        self._fd = path.descriptor(os.O_RDWR | os.O_CREAT)
        until_s = time.monotonic() + timeout_s
        try:
            while not _locked(self._fd, fcntl.LOCK_EX):
                if time.monotonic() >= until_s:
                    raise TimeoutError(errno.ETIMEDOUT, "another process holds the lock", str(path))
                time.sleep(POLL_S)
        except OSError:
            os.close(self._fd)
            raise

    def release(self) -> None:
        """Release the lock, also if a forked child still has the file open."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        os.close(self._fd)


def _locked(fd: int, kind: int) -> bool:
    """Try to lock an open file; return True if successful."""
    try:
        fcntl.flock(fd, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _lock_if_any(path: SafePath, timeout_s: float) -> tuple[_FileLock | None, str]:
    """Return the lock on a file, or None and the error text of a file system without locks."""
    try:
        return _FileLock(path, timeout_s), ""
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return None, error.strerror or str(error)


class RunLock:
    """Exclusive right to write to a run directory, acquired by the constructor.

    Args:
        run: the run directory.
        timeout_s: seconds to wait for another process of this machine to release it.

    Raises:
        ConfigurationError: another coordinator holds it.
        OSError: the directory is not writable.
    """

    def __init__(self, run: Path, timeout_s: float) -> None:
        self._run = run
        self._owner = Owner(SafePath(run) / OWNER_NAME)
        try:
            #: None on a file system without locks
            self._lock, why = _lock_if_any(SafePath(run) / LOCK_NAME, timeout_s)
            if self._lock is None:
                self._owner.claim(timeout_s)
                logger.warning(
                    "`%s` is on a file system without locks (%s): `%s` guards the run instead.",
                    run,
                    why,
                    OWNER_NAME,
                )
        except TimeoutError:
            raise ConfigurationError(
                f"A run directory has one coordinator at a time, and another process holds `{run}`"
                f"{in_words(read_owner(run))}: wait for it to end, or choose another name by "
                f"`{spelled('checkpoint', 'NAME')}`."
            ) from None
        if self._lock is not None:
            try:
                self._owner.take_over()
            except BaseException:
                self._lock.release()
                raise

    def check(self) -> None:
        """Raise OSError, before a write, if another process has taken the run over while this one slept.

        Raises ConfigurationError in a process that was forked from the owner.
        """
        refuse_forked(self._owner.mine["pid"], f"The run `{self._run}`", "Leave all writing to the latter.")
        self._owner.check()

    def close(self) -> None:
        """Release the run; does nothing in a forked child."""
        if os.getpid() != self._owner.mine["pid"]:
            return
        self._owner.close()
        if self._lock is not None:
            self._lock.release()


def may_be_at_work(run: Path) -> bool:
    """Return True if a run has a live owner, or is shared by jobs of which one may be alive."""
    return _has_live_owner(run) or may_be_shared_now(run)


def _has_live_owner(run: Path) -> bool:
    """Return True for a running process of this machine, or one with a recent heartbeat."""
    owner, note = read_owner(run), SafePath(run) / OWNER_NAME
    if owner is None:
        return False
    if not is_of_this_machine(owner, this_process()):
        return beats(note)
    try:
        with (SafePath(run) / LOCK_NAME).open("rb") as file:
            return not _locked(file.fileno(), fcntl.LOCK_SH)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            return False
    alive = is_alive(owner)
    return beats(note) if alive is None else alive


@contextmanager
def launcher_of(path: Path) -> Iterator[None]:
    """Lock a run directory for its launcher during a `with` block; afterwards an empty directory is removed.

    Raises:
        ConfigurationError: another launcher holds it.
    """
    owner = Owner(SafePath(path) / LAUNCH_OWNER_NAME, "launcher")
    try:
        make_directory(path)
        lock, _ = _lock_if_any(SafePath(path) / LAUNCH_LOCK_NAME, 0.0)
        if lock is None:
            owner.claim(0.0)
    except TimeoutError:
        raise ConfigurationError(
            f"A run has one launcher at a time, and another one is working on `{path}`: wait for it to end, or choose "
            f"another name by `{spelled('checkpoint', 'NAME')}`."
        ) from None
    except OSError as error:
        raise not_writable(path, error) from None
    try:
        yield
    finally:
        if lock is None:
            owner.close()
        with suppress(OSError):
            if os.listdir(path) == [LAUNCH_LOCK_NAME]:
                (SafePath(path) / LAUNCH_LOCK_NAME).unlink()
                path.rmdir()
        if lock is not None:
            lock.release()


def not_writable(path: Path, error: OSError) -> ConfigurationError:
    """Return the error to raise for the run directory `path`, in which `error` has prevented a write."""
    return ConfigurationError(
        f"The run directory must be writable. Received: `{path}` ({error.strerror or error}); choose another place by "
        f"`{spelled('checkpoint', 'DIR/NAME')}`."
    )
