"""Files that other users may tamper with: paths that follow no links, and checks of who can have written a file.

Anyone who may write to a run directory can replace any file by a link, a FIFO or a huge file. So files of a run are
accessed by a `SafePath`: each call opens the folder, then each folder below it relative to the descriptor of the one
above. A path swapped for a link between two calls, or during one, is refused, too.

For files whose code is executed, and for the folder of `--cache-data`, the whole path is checked: anyone who can rename
a folder on the path can replace the file.
"""

import errno
import grp
import os
import pwd
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import IO, Any

#: largest note, such as `run.owner`, and largest file that is read whole, in bytes
NOTE_BYTES, MOST_BYTES = 2**20, 2**34
_FOLDER = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)


@dataclass(frozen=True, order=True, slots=True)
class SafePath:
    """Path of a file or folder with methods like those of `pathlib.Path`, which raise OSError on a link."""

    #: folder given by the user or created by us; the path to it may contain links
    root: Path
    #: names below it
    parts: tuple[str, ...] = ()

    @classmethod
    def of(cls, path: Path) -> "SafePath":
        """Return the safe path of a file in a folder given by the user or created by us."""
        return cls(path.parent) / path.name

    def __truediv__(self, name: str) -> "SafePath":
        parts = Path(name).parts
        if ".." in parts or os.path.isabs(name):
            raise OSError(errno.EINVAL, "leads out of its folder", str(self.root / name))
        return SafePath(self.root, (*self.parts, *parts))

    def __str__(self) -> str:
        return str(self.root.joinpath(*self.parts))

    @property
    def name(self) -> str:
        return self.parts[-1] if self.parts else "."

    @property
    def parent(self) -> "SafePath":
        return SafePath(self.root, self.parts[:-1]) if self.parts else SafePath(self.root.parent)

    def with_name(self, name: str) -> "SafePath":
        return self.parent / name

    @contextmanager
    def _within(self) -> Iterator[int]:
        """Yield a descriptor of the folder that contains this path."""
        fd = os.open(self.root, _FOLDER)
        try:
            for part in self.parts[:-1]:
                above, fd = fd, os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=fd)
                os.close(above)
            yield fd
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                error = OSError(errno.ELOOP, "is a link or not a folder; no link in a run is followed", str(self))
            error.filename = str(self)
            raise error from None
        finally:
            os.close(fd)

    # ------------------------------------------------------------ files

    def descriptor(self, flags: int) -> int:
        """Open a regular file without blocking (as on a FIFO); return its descriptor."""
        with self._within() as folder:
            flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            fd = os.open(self.name, flags, 0o666, dir_fd=folder)
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                os.close(fd)
                raise OSError(errno.EINVAL, "not a regular file")
        return fd

    def open(self, mode: str = "r", **keywords: Any) -> IO[Any]:
        """Open a regular file; `keywords` are for the built-in `open`."""
        return open(self.name, mode, opener=lambda _, flags: self.descriptor(flags), **keywords)

    def read_bytes(self, most: int = NOTE_BYTES) -> bytes:
        """Return the content of a file of at most `most` bytes."""
        with self.open("rb") as file:
            if os.fstat(file.fileno()).st_size > most:
                raise OSError(errno.EFBIG, f"has more than {most:,} bytes", str(self))
            return bytes(file.read())

    def write_bytes(self, data: bytes) -> None:
        with self.open("wb") as file:
            file.write(data)

    def touch(self) -> None:
        """Set the modification time of a file to now."""
        with self._within() as folder:
            os.utime(self.name, dir_fd=folder, follow_symlinks=False)

    def unlink(self, missing_ok: bool = False) -> None:
        with suppress(*[FileNotFoundError] * missing_ok), self._within() as folder:
            os.unlink(self.name, dir_fd=folder)

    def symlink_to(self, target: str) -> None:
        """Create a link at this path, which the methods here do not follow."""
        with self._within() as folder:
            os.symlink(target, self.name, dir_fd=folder)

    def readlink(self) -> str:
        """Return the target of a link; OSError if this is not a link."""
        with self._within() as folder:
            return os.readlink(self.name, dir_fd=folder)

    def replace(self, target: "SafePath") -> None:
        with self._within() as here, target._within() as there:
            os.replace(self.name, target.name, src_dir_fd=here, dst_dir_fd=there)

    def hardlink_to(self, target: "SafePath") -> None:
        """Make this path another name of the file `target`; FileExistsError if it exists."""
        with self._within() as here, target._within() as there:
            os.link(target.name, self.name, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False)

    # ------------------------------------------------------------ folders

    def mkdir(self, exist_ok: bool = False) -> None:
        """Create a folder; with `exist_ok`, an existing folder is accepted, but nothing else of that name."""
        if not self.parts:
            return self.root.mkdir(exist_ok=exist_ok)
        with self._within() as folder:
            try:
                os.mkdir(self.name, dir_fd=folder)
            except FileExistsError:
                if not exist_ok:
                    raise
                if not self.is_dir():
                    raise OSError(errno.ENOTDIR, "no folder") from None

    def rmdir(self) -> None:
        """Remove an empty folder."""
        with self._within() as folder:
            os.rmdir(self.name, dir_fd=folder)

    def iterdir(self) -> list["SafePath"]:
        """Return the paths in a folder, sorted."""
        with (self / ".entry")._within() as folder:
            fd = os.open(".", os.O_RDONLY | os.O_CLOEXEC, dir_fd=folder)
            try:
                return [self / name for name in sorted(os.listdir(fd))]
            finally:
                os.close(fd)

    def glob(self, pattern: str) -> list["SafePath"]:
        """Return the paths that match a pattern, sorted; none if the folder does not exist or is a link."""
        first, _, rest = pattern.partition("/")
        try:
            found = [path for path in self.iterdir() if fnmatchcase(path.name, first)]
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ELOOP):
                raise
            return []
        return [below for path in found if path.is_dir() for below in path.glob(rest)] if rest else found

    def walk(self, enters: Callable[["SafePath"], bool] = bool) -> Iterator["SafePath"]:
        """Yield this path and everything below it at any depth; a folder comes before its content.

        Args:
            enters: returns False for folders not to descend into.
        """
        waiting = [self]
        while waiting:
            yield (path := waiting.pop())
            if path.is_dir() and enters(path):
                waiting += reversed(path.iterdir())

    def below(self, folder: "SafePath") -> str:
        """Return this path relative to `folder`, which contains it."""
        return "/".join(self.parts[len(folder.parts) :])

    def copy(self, target: "SafePath") -> None:
        """Copy a file, or a folder with its content, to `target`, which may be an existing folder."""
        for path in self.walk():
            copied = target / path.below(self)
            if path.is_dir():
                copied.mkdir(exist_ok=True)
            else:
                with path.open("rb") as source, copied.open("wb") as file:
                    shutil.copyfileobj(source, file)

    def remove(self) -> None:
        """Remove a file, a link, or a folder with its content; do nothing if it does not exist."""
        with suppress(FileNotFoundError), self._within() as folder:
            if stat.S_ISDIR(os.lstat(self.name, dir_fd=folder).st_mode):
                _remove_folder(self.name, folder)
            else:
                os.unlink(self.name, dir_fd=folder)

    # ------------------------------------------------------------ both

    def stat(self) -> os.stat_result:
        """Return the status of the path itself, which may be a link."""
        with self._within() as folder:
            return os.stat(self.name, dir_fd=folder, follow_symlinks=False)

    def exists(self) -> bool:
        """Return True if there is a file, a folder or a link."""
        with suppress(FileNotFoundError):
            self.stat()
            return True
        return False

    def is_dir(self) -> bool:
        with suppress(OSError):
            return stat.S_ISDIR(self.stat().st_mode)
        return False

    def is_link(self) -> bool:
        """Return True for a link; False for a path that is gone, though a folder may still list it."""
        with suppress(FileNotFoundError):
            return stat.S_ISLNK(self.stat().st_mode)
        return False

    def sync(self) -> None:
        """Flush a file's content, or a folder's entries, to disk."""
        with self._within() as folder:
            fd = os.open(self.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


def discard(folder: Path) -> None:
    """Remove a temporary folder with its content, if possible."""
    with suppress(OSError):
        SafePath.of(folder).remove()


def _remove_folder(name: str, above: int) -> None:
    """Remove a folder with its content; links are removed, not followed.

    Nested folders are first moved up into this one: `shutil.rmtree` needs a recursion and a descriptor per level.
    """
    top = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        while found := os.listdir(top):
            for one in found:
                _remove_within(one, top, top)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=above)


def _remove_within(name: str, folder: int, top: int) -> None:
    """Remove a file or an empty folder; empty another folder in `top`, or move a deeper one up to `top`."""
    if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
        os.unlink(name, dir_fd=folder)
        return
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    else:
        return
    if folder != top:
        os.rename(name, f".removed.{uuid.uuid4().hex}", src_dir_fd=folder, dst_dir_fd=top)
        return
    inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        for one in os.listdir(inner):
            _remove_within(one, inner, top)
    finally:
        os.close(inner)
    os.rmdir(name, dir_fd=folder)


# ---------------------------------------------------------------- who can have written a file


def own_bytes(path: Path) -> bytes:
    """Return the bytes of a file that only this user can have written; links are resolved first.

    Raises:
        PermissionError: the file belongs to another user, or another user may write to it or replace it.
        OSError: it cannot be read.
    """
    place = path.resolve()
    check_way(place.parent)
    found = os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # does not block on a FIFO
    with open(found, "rb") as file:
        status = os.fstat(found)
        is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid()
        if not is_own or status.st_mode & stat.S_IWOTH or (status.st_mode & stat.S_IWGRP and not _is_private(found)):
            raise mistrust(place, status, "and must be your own file, which nobody else can write to")
        return file.read()


def _is_private(found: int) -> bool:
    """Return True if the group of an open file is a user-private group without other members.

    An access control list shows as rights of the group.
    """
    with suppress(KeyError, OSError):  # unknown user or group, or no such lists
        user, group = pwd.getpwuid(os.geteuid()).pw_name, grp.getgrgid(os.fstat(found).st_gid)
        is_of_user = group.gr_name == user and {user}.issuperset(group.gr_mem)
        return is_of_user and "system.posix_acl_access" not in os.listxattr(found)
    return False


def private_directory(folder: Path) -> os.stat_result:
    """Create `folder` unless it exists, and return its status; PermissionError unless it is private to this user."""
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise mistrust(folder, status, "and must be your own directory, drwx------")
    return status


def mistrust(place: Path, status: os.stat_result, why: str) -> PermissionError:
    """Return the error to raise for a file that another user may have written."""
    words = f"`{place}` is {stat.filemode(status.st_mode)} of user {status.st_uid}, {why}"
    return PermissionError(errno.EPERM, words)


def check_way(folder: Path) -> None:
    """Raise PermissionError if any user could replace a directory on the path to `folder`, which has no links.

    The owner of a directory can rename its entries. So can everybody if it is world-writable without the sticky bit.
    Groups are trusted, and so are owners of directories that not everybody could have created.
    """
    is_public = False
    for place in (*reversed(folder.parents), folder):
        status = place.lstat()
        if is_public and status.st_uid not in (0, os.geteuid()):
            raise mistrust(place, status, "who can replace files in it")
        if status.st_uid == os.geteuid() and not status.st_mode & 0o077:
            return  # nobody else can enter
        if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
            raise mistrust(place, status, "so anybody can replace files in it, unless you `chmod +t` it")
        is_public = is_public or bool(status.st_mode & stat.S_IWOTH)
