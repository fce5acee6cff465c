"""Files that jobs share in the folder `jobs` of a run directory; see `core.jobs.files`."""

import os
import uuid
from contextlib import suppress
from pathlib import Path

from nnlo_opt.core.base.files import atomic_path, atomic_write, make_directory, write_fully
from nnlo_opt.core.base.safe_path import SafePath
from nnlo_opt.core.jobs.files import MOST_JOURNAL_BYTES, MOST_NEW_BYTES, SharedFiles
from nnlo_opt.core.trials.journal import Journal
from nnlo_opt.core.trials.run_directory import JOURNAL_NAME
from nnlo_opt.core.trials.sharing import FOLDER
from nnlo_opt.core.trials.sync_mark import MARK_NAME


class FolderFiles(SharedFiles):
    """Shared files of a run.

    Args:
        run: run directory; the folder is created.
    """

    def __init__(self, run: Path) -> None:
        self._run = SafePath(run)
        self._folder = self._run / FOLDER
        make_directory(self._folder)

    def create(self, name: str, data: bytes) -> bool:
        # A file cannot be opened exclusively with its content, but be given a name exclusively: open(2) says how.
        temporary = self._folder / f".{name}.{uuid.uuid4().hex[:12]}"
        temporary.write_bytes(data)
        try:
            temporary.sync()
            try:
                (self._folder / name).hardlink_to(temporary)
            except FileExistsError:
                # A network file system sends a request again if its answer was lost.
                with temporary.open("rb") as file:
                    return os.fstat(file.fileno()).st_nlink == 2
        finally:
            temporary.unlink()
        self._folder.sync()
        return True

    def append(self, name: str, data: bytes) -> None:
        path = self._folder / name
        existed = path.exists()
        fd = path.descriptor(os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            n_before = os.fstat(fd).st_size
            try:
                write_fully(fd, data)
                os.fsync(fd)
            except OSError:
                with suppress(OSError):
                    os.ftruncate(fd, n_before)
                raise
        finally:
            os.close(fd)
        if not existed:
            self._folder.sync()

    def read(self, name: str, start: int = 0, most: int = MOST_NEW_BYTES) -> bytes | None:
        return _content(self._folder / name, start, most)

    def replace(self, name: str, data: bytes) -> None:
        make_directory((self._folder / name).parent)
        atomic_write(self._folder / name, data)

    def journal(self, name: str) -> Journal:
        return Journal(self._folder / name)

    def published(self) -> bytes | None:
        return _content(self._run / JOURNAL_NAME, 0, MOST_JOURNAL_BYTES)

    def publish(self, name: str) -> None:
        source, target = self._folder / name, self._run / JOURNAL_NAME
        if target.exists() and os.path.samestat(source.stat(), target.stat()):
            return
        # The mark of another journal says nothing about this one.
        (self._run / MARK_NAME).unlink(missing_ok=True)
        with atomic_path(target) as temporary:
            temporary.hardlink_to(source)


def _content(path: SafePath, start: int, most: int) -> bytes | None:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return bytes(file.read(most))
    except FileNotFoundError:
        return None
