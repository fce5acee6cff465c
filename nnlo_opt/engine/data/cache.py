"""Copies of data files on a local disk, shared by the ranks of a node.

A rank copies a file when it first reads samples of it, so each node holds one copy of each file that its ranks train
on. A copy exists as long as a process uses it: every user holds a shared lock on a file next to the copy, and the
process that can lock this file exclusively may remove both. The operating system releases the locks of a killed
process, so the next start with the same folder removes leftover copies.

The lock file also records the size and times of the finished copy (its marks). An existing copy that still matches its
marks is used without reading it: a process of this user made it, and nobody has written to it since. Any other copy is
compared with its source, byte by byte, once for all ranks of the node.
"""

import atexit
import fcntl
import hashlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from nnlo_opt.core.base.errors import ConfigurationError, TrialError
from nnlo_opt.core.base.files import NO_LOCKS
from nnlo_opt.core.base.pulse import PULSE, SLOW
from nnlo_opt.core.base.safe_path import check_way, mistrust, private_directory
from nnlo_opt.core.base.spelling import spelled

logger = logging.getLogger(__name__)

_LOCK, _PART = ".lock", ".part"
#: bytes that are read at once to copy or compare
_BLOCK_BYTES = 1 << 20
#: size of the marks of a copy
_MARKS_BYTES = 100
_REMEDY = "Give one such as 'scp {} {}', or leave it out."


def parse_copy_command(text: str, origin: str = "") -> tuple[str, ...]:
    """Split `text` into words with two `{}`, for source and target; ConfigurationError if it is not a valid command.

    `origin`: where the command comes from, for messages; the option by default.
    """
    option = origin or spelled("copy_command")
    try:
        words = tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigurationError(
            f"`{option}` must be a command in the syntax of a shell. Received: {text} ({error}). {_REMEDY}"
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

    The names of the copies can be guessed, so they are in a folder that belongs to this user and that nobody else can
    access. Files in it are opened relative to the checked folder, without following links.

    Args:
        folder: folder on the local disk.
        command: copy command with two `{}`, for source and target; None to copy in this process.

    Raises:
        ConfigurationError: if `folder` is not writable, or if another user could replace the files in it.
    """

    def __init__(self, folder: Path, command: Sequence[str] | None = None) -> None:
        self._command = command
        #: file -> its copy, and the descriptor that holds the lock
        self._copies: dict[Path, tuple[Path, int]] = {}
        #: guards `_copies`, because two threads may read samples
        self._mutex = threading.Lock()
        #: id of this process; a forked child shares its locks
        self._pid = os.getpid()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # Resolve links in the path once.
            import psutil

            self._folder = folder.resolve() / f"nnlo_opt-{psutil.Process().username()}"
            check_way(self._folder.parent)
            with self._opened() as home:
                with tempfile.TemporaryFile(dir=self._folder) as probe:
                    fcntl.flock(probe, fcntl.LOCK_SH)
                self._remove_leftovers(home)
        except OSError as error:
            if error.errno in NO_LOCKS:
                raise ConfigurationError(
                    f"`{spelled('cache_data')}` must name a folder on a disk of the node, whose file system has locks. "
                    f"Received: `{folder}` ({error.strerror}); name one such as `$TMPDIR` or `/tmp`, or leave "
                    f"`{spelled('cache_data')}` out."
                ) from None
            raise ConfigurationError(
                f"`{spelled('cache_data')}` must name a folder where you can write files that other users cannot "
                f"replace. Received: `{folder}` ({error.strerror}); choose another folder."
            ) from None
        atexit.register(self.close)

    def locate(self, path: Path) -> Path:
        """Return the copy of `path`, after copying it if needed; `TrialError` if it cannot be copied."""
        with self._mutex:
            if path not in self._copies:
                try:
                    self._copies[path] = self._acquire(path)
                except OSError as error:
                    raise TrialError(
                        f"A data file must be copied to `{spelled('cache_data')}`. Received: {path} to "
                        f"`{self._folder}` ({error.strerror or error}). Free some disk space, or choose another folder."
                    ) from error
            return self._copies[path][0]

    def close(self) -> None:
        """Release all copies, and remove those that no other process uses; a forked process leaves them alone."""
        atexit.unregister(self.close)
        if os.getpid() != self._pid:
            return
        with self._mutex:
            copies, self._copies = self._copies, {}
        for copy, lock in copies.values():
            _remove_if_unused(copy, lock)
        with suppress(OSError):
            self._folder.rmdir()  # succeeds if the folder is empty

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Yield a descriptor of the folder, created if missing; PermissionError if other users can access it."""
        status = private_directory(self._folder)
        home = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if not os.path.samestat(os.fstat(home), status):
                raise mistrust(self._folder, status, "and was replaced at this moment")
            yield home
        finally:
            os.close(home)

    def _acquire(self, path: Path) -> tuple[Path, int]:
        """Return (copy of `path`, descriptor of a shared lock on it)."""
        status = path.stat()
        key = os.fsencode(path.resolve()) + f"\0{status.st_size}\0{status.st_mtime_ns}".encode()
        # Only the end of a long name: file systems limit names to 255 bytes.
        copy = self._folder / f"{hashlib.sha256(key).hexdigest()[:20]}-{path.name[-50:]}"
        while True:
            lock = self._locked(copy, fcntl.LOCK_SH)
            if not os.path.lexists(copy):
                os.close(lock)
                self._make(path, copy, status.st_size)
            elif self._is_like(path, copy, lock):
                return copy, lock
            else:
                logger.warning("%s is not a copy of %s: it is removed", copy, path)
                _remove_if_unused(copy, lock)
                if os.path.lexists(copy):
                    raise TrialError(
                        f"A copy must be identical to its file. Received: {copy}, which differs from {path} and is in "
                        "use by another process. End the other process, then remove the copy."
                    )

    def _locked(self, copy: Path, how: int) -> int:
        """Wait for the lock of `copy`, and return the descriptor that holds it."""
        name = copy.name + _LOCK
        while True:
            # A process that removes a copy also removes its lock file, and the folder if empty: then our descriptor
            # is of a deleted file, or the file cannot be created.
            with self._opened() as home, suppress(FileNotFoundError):
                lock = os.open(name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=home)
                fcntl.flock(lock, how)
                with suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(lock), os.stat(name, dir_fd=home, follow_symlinks=False)):
                        return lock
                os.close(lock)

    def _make(self, path: Path, copy: Path, n_bytes: int) -> None:
        """Copy `path` unless another process has done so; write the marks of the copy to its lock file."""
        lock = self._locked(copy, fcntl.LOCK_EX)
        try:
            if not os.path.lexists(copy):
                os.pwrite(lock, bytes(_MARKS_BYTES), 0)  # reserve the space before the copy fills the disk
                self._copy(path, copy, n_bytes)
                os.pwrite(lock, _marks(copy.lstat()), 0)
        finally:
            os.close(lock)

    def _copy(self, path: Path, copy: Path, n_bytes: int) -> None:
        logger.info("copying %s to %s (%.0f MiB)", path, copy, n_bytes / 2**20)
        PULSE.ticks += 1
        PULSE.expect(SLOW)
        part = copy.with_name(copy.name + _PART)
        part.unlink(missing_ok=True)  # left by a killed process
        try:
            if self._command is None:
                with self._opened() as home, path.open("rb") as source:
                    made = os.open(part.name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=home)
                    with open(made, "wb") as target:
                        shutil.copyfileobj(source, target, _BLOCK_BYTES)
            else:
                _run(self._command, path, part)
            size = part.stat().st_size if part.is_file() and not part.is_symlink() else -1
            if size != n_bytes or (self._command is not None and not self._agree(path, part)):
                what = "no file" if size < 0 else f"{size} bytes" if size != n_bytes else "other bytes"
                raise TrialError(
                    f"A copy must be identical to its file. Received: {what} for the {n_bytes} bytes of {path}. "
                    f"Correct `{spelled('copy_command')}`."
                )
            part.rename(copy)
        finally:
            part.unlink(missing_ok=True)

    def _is_like(self, path: Path, copy: Path, lock: int) -> bool:
        """Return True if `copy` equals `path`; both are read unless `copy` still matches its marks."""
        with suppress(OSError):
            marks = _marks(copy.lstat())
            if os.pread(lock, len(marks), 0) == marks:
                return True
            if self._agree(path, copy):
                os.pwrite(lock, marks, 0)
                return True
        return False

    def _agree(self, path: Path, copy: Path) -> bool:
        """Return True if both files have the same bytes; fails if the copy is a link."""
        PULSE.ticks += 1
        PULSE.expect(SLOW)
        with self._opened() as home, path.open("rb") as source:
            found = os.open(copy.name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=home)
            with open(found, "rb") as target:
                while (block := source.read(_BLOCK_BYTES)) == target.read(_BLOCK_BYTES):
                    if not block:
                        return True
        return False

    def _remove_leftovers(self, home: int) -> None:
        """Remove the copies of processes that have ended."""
        for path in self._folder.glob(f"*{_LOCK}"):
            with suppress(OSError):
                copy = path.with_name(path.name.removesuffix(_LOCK))
                _remove_if_unused(copy, os.open(path.name, os.O_RDWR | os.O_NOFOLLOW, dir_fd=home))


def _marks(status: os.stat_result) -> bytes:
    """Return what changes when a file is written to or replaced; users cannot set the last field (ctime)."""
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns} {status.st_ctime_ns}".ljust(_MARKS_BYTES).encode()


def _remove_if_unused(copy: Path, lock: int) -> None:
    """Remove `copy` with its lock file unless another process holds the lock; close `lock`."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path = copy.with_name(copy.name + _LOCK)
        if os.path.samestat(os.fstat(lock), path.lstat()):
            copy.unlink(missing_ok=True)
            copy.with_name(copy.name + _PART).unlink(missing_ok=True)
            path.unlink(missing_ok=True)
    except OSError:
        pass  # used or removed by another process
    finally:
        os.close(lock)


def _run(command: Sequence[str], path: Path, part: Path) -> None:
    """Copy `path` to `part` by the command; `TrialError` if it fails."""
    places = iter((str(path.absolute()), str(part.absolute())))
    words = [re.sub(r"\{\}", lambda _: next(places), word) for word in command]
    # A new session shields the command from the signals that mpirun forwards to this process group.
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False, start_new_session=True)
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
        raise TrialError(
            f"`{spelled('copy_command')}` must end with 0. Received: {done.returncode} for {path} ({last[0]}). "
            "Correct the command, or leave it out."
        )
