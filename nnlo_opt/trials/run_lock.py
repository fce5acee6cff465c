"""One coordinator a run: a lock of the operating system, and a note of who holds it.

The lock (`run.lock`) goes with the process that held it, however that died, so among processes of one machine it is the
truth. Between machines it may be worth nothing, as file systems are often mounted without locks that reach others: so
the owner writes host, process and boot of its machine to `run.owner` and removes it at the end. An owner of this
machine whose lock is free is gone. Of one of another machine nobody here can know, so it is refused.
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.files import atomic_write

LOCK_NAME = "run.lock"
OWNER_NAME = "run.owner"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class RunLock:
    """The right to write to a run directory; taken by the constructor."""

    def __init__(self, run: Path, timeout_s: float) -> None:
        """Wait `timeout_s` for a process of this machine to let go; ConfigurationError where one does not, OSError."""
        self._owner = run / OWNER_NAME
        self._lock = FileLock(run / LOCK_NAME)
        try:
            self._lock.acquire(timeout=timeout_s)
        except Timeout:
            raise ConfigurationError(
                f"A run directory has one coordinator at a time, and another process holds `{run}`"
                f"{_in_words(_read(self._owner))}: wait for it to end, or choose another name by `--checkpoint NAME`."
            ) from None
        try:
            self._take_over()
            atomic_write(self._owner, json.dumps(this_process()) + "\n")
        except BaseException:
            self._lock.release()
            raise

    def _take_over(self) -> None:
        """ConfigurationError for an owner that may live, on another machine."""
        owner, here = _read(self._owner), this_process()
        # The host alone: it was booted since. The boot alone: a container of another name on the same machine.
        if owner is None or owner.get("boot") == here["boot"] or owner.get("host") == here["host"]:
            return
        raise ConfigurationError(
            f"A run directory has one coordinator at a time, and `{self._owner.parent}` belongs to another "
            f"one{_in_words(owner)}, of which this machine ({here['host']}) cannot see whether it is alive: make sure "
            f"that it has ended, then remove `{self._owner}`."
        )

    def release(self) -> None:
        """Let go of the run."""
        with suppress(OSError):  # the directory may be gone, or read-only by now: the lock says enough here
            self._owner.unlink()
        self._lock.release()


@contextmanager
def hold(run: Path) -> Iterator[None]:
    """Hold a run that exists, at once or not at all."""
    lock = RunLock(run, timeout_s=0.0)
    try:
        yield
    finally:
        lock.release()


def forget_owner(run: Path) -> None:
    """Remove the note of an owner that is known to be gone, whatever machine it was on."""
    with suppress(OSError):
        (run / OWNER_NAME).unlink()


def lock_for_launcher(path: Path) -> FileLock:
    """The lock of the one launcher of the run directory `path`, taken; ConfigurationError where another has it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path / "launch.lock")
        lock.acquire(timeout=0)
    except Timeout:
        raise ConfigurationError(
            f"A run has one launcher at a time, and another one is at work on `{path}`: wait for it to end, or choose "
            "another name by `--checkpoint NAME`."
        ) from None
    except OSError as error:
        raise ConfigurationError(
            f"The run directory must be writable. Received: `{path}` ({error.strerror or error}); choose another "
            "place by `--checkpoint DIR/NAME`."
        ) from None
    return lock


def this_process() -> dict[str, Any]:
    """What `run.owner` says of the process that asks."""
    boot = ""
    with suppress(OSError):
        boot = _BOOT.read_text().strip()
    return {"host": socket.gethostname(), "pid": os.getpid(), "boot": boot or socket.gethostname()}


def _read(path: Path) -> dict[str, Any] | None:
    """The owner; None where there is none that can be read."""
    try:
        owner = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return owner if isinstance(owner, dict) else None


def _in_words(owner: dict[str, Any] | None) -> str:
    return "" if owner is None else f" (process {owner.get('pid')} on {owner.get('host')})"
