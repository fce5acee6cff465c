"""Copies of data files on a local disk, shared by the ranks of a node.

A rank copies a file when it first reads samples of it, so each node holds one copy of each file that its ranks train
on. A copy exists as long as a process uses it: every user holds a shared lock on a file next to the copy, and the
process that can lock this file exclusively may remove both. The operating system releases the locks of a killed
process, so the next start with the same folder removes copies that were left behind.
"""

import atexit
import fcntl
import getpass
import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from nnlo_opt.errors import ConfigurationError, TrialError
from nnlo_opt.runtime.pulse import PULSE, SLOW

logger = logging.getLogger(__name__)

_LOCK = ".lock"
_REMEDY = "Give one such as 'scp {} {}', or leave it out."


def parse_copy_command(text: str, option: str = "--copy-command") -> tuple[str, ...]:
    """Return `text` as words with two `{}`, for source and target; ConfigurationError if they are not a command."""
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigurationError(
            f"`{option}` must be a command as a shell reads it. Received: {text} ({error}). {_REMEDY}"
        ) from None
    if sum(word.count("{}") for word in words) != 2 or not words or "{}" in words[0]:
        raise ConfigurationError(
            f"`{option}` must be a command with {{}} twice, for the file and for its copy. Received: {text}. {_REMEDY}"
        )
    if shutil.which(words[0]) is None:
        raise ConfigurationError(
            f"`{option}` must begin with a program that can be run. Received: {words[0]}, which is not found. {_REMEDY}"
        )
    return words


class FileCache:
    """Copies that this rank uses; `close` releases them, and so does the end of the process.

    Args:
        folder: folder on the local disk.
        command: copy command with two `{}`, for source and target; None to copy in this process.

    Raises:
        ConfigurationError: if `folder` is not writable.
    """

    def __init__(self, folder: Path, command: Sequence[str] | None = None) -> None:
        self._folder = folder / f"nnlo_opt-{_user()}"
        self._command = command
        #: file -> its copy, and the descriptor that holds the lock
        self._copies: dict[Path, tuple[Path, int]] = {}
        #: guards `_copies`, because two threads may read samples
        self._mutex = threading.Lock()
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=self._folder).close()
        except OSError as error:
            raise ConfigurationError(
                f"`--cache-data` must name a folder in which files can be written. Received: `{folder}` "
                f"({error.strerror}); choose another folder."
            ) from None
        self._remove_leftovers()
        atexit.register(self.close)

    def locate(self, path: Path) -> Path:
        """Return the copy of `path`, after copying it if needed; `TrialError` if it cannot be copied."""
        with self._mutex:
            if path not in self._copies:
                try:
                    self._copies[path] = self._acquire(path)
                except OSError as error:
                    raise TrialError(
                        f"A data file must be copied to `--cache-data`. Received: {path} to `{self._folder}` "
                        f"({error.strerror or error}). Free some disk space, or choose another folder."
                    ) from error
            return self._copies[path][0]

    def close(self) -> None:
        """Release all copies, and remove those that no other process uses."""
        atexit.unregister(self.close)
        with self._mutex:
            copies, self._copies = self._copies, {}
        for copy, lock in copies.values():
            _remove_if_unused(copy, lock)
        with suppress(OSError):
            self._folder.rmdir()  # succeeds if the folder is empty

    def _acquire(self, path: Path) -> tuple[Path, int]:
        """Return (copy of `path`, descriptor of a shared lock on it)."""
        status = path.stat()
        key = f"{path.resolve()}\0{status.st_size}\0{status.st_mtime_ns}".encode()
        copy = self._folder / f"{hashlib.sha256(key).hexdigest()[:20]}-{path.name}"
        while True:
            lock = _locked(copy, fcntl.LOCK_SH)
            if copy.exists():
                return copy, lock
            os.close(lock)
            lock = _locked(copy, fcntl.LOCK_EX)
            try:
                if not copy.exists():
                    self._copy(path, copy, status.st_size)
            finally:
                os.close(lock)

    def _copy(self, path: Path, copy: Path, n_bytes: int) -> None:
        logger.info("copying %s to %s (%.0f MiB)", path, copy, n_bytes / 2**20)
        PULSE.ticks += 1
        PULSE.expect(SLOW)
        part = copy.with_name(f"{copy.name}.part")
        try:
            if self._command is None:
                shutil.copyfile(path, part)
            else:
                _run(self._command, path, part)
            if not part.is_file() or part.stat().st_size != n_bytes:
                size = f"{part.stat().st_size} bytes" if part.is_file() else "no file"
                raise TrialError(
                    f"A copy must be as large as its file. Received: {size} for the {n_bytes} bytes of {path}. Correct "
                    "`--copy-command`."
                )
            part.rename(copy)
        finally:
            part.unlink(missing_ok=True)

    def _remove_leftovers(self) -> None:
        """Remove the copies of processes that have ended."""
        for path in self._folder.glob(f"*{_LOCK}"):
            with suppress(OSError):
                copy = path.with_name(path.name.removesuffix(_LOCK))
                _remove_if_unused(copy, os.open(path, os.O_RDWR))


def _locked(copy: Path, how: int) -> int:
    """Wait for the lock of `copy`, and return the descriptor that holds it."""
    path = copy.with_name(copy.name + _LOCK)
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, how)
        # A process that removes a copy removes the lock file as well; this descriptor is then of a file without name.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                return lock
        os.close(lock)


def _remove_if_unused(copy: Path, lock: int) -> None:
    """Remove `copy` with its lock file unless another process holds the lock; close `lock`."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path = copy.with_name(copy.name + _LOCK)
        if os.path.samestat(os.fstat(lock), os.stat(path)):
            copy.unlink(missing_ok=True)
            copy.with_name(f"{copy.name}.part").unlink(missing_ok=True)
            path.unlink(missing_ok=True)
    except OSError:
        pass  # used or removed by another process
    finally:
        os.close(lock)


def _run(command: Sequence[str], path: Path, part: Path) -> None:
    """Copy `path` to `part` by the command; `TrialError` if it fails."""
    places = iter((str(path.absolute()), str(part.absolute())))
    words = [re.sub(r"\{\}", lambda _: next(places), word) for word in command]
    # A new session keeps away the signals that mpirun passes on to this process's group.
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False, start_new_session=True)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it said nothing"]
        raise TrialError(
            f"`--copy-command` must end with 0. Received: {done.returncode} for {path} ({last[0]}). Correct the "
            "command, or leave it out."
        )


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return str(os.getuid())
