"""Starts OptimizationDriver on a folder of jobs in which others' writes are seen up to `LATE_S` seconds late.

What this process has written it sees at once, as on NFS. A file that has not changed for `LATE_S` is seen whole.
"""

import os
import random
import sys
import time
from pathlib import Path
from typing import Any

from nnlo_opt.app.run.jobs import shared_run
from nnlo_opt.cli.main import script
from nnlo_opt.core.jobs.files import MOST_NEW_BYTES
from nnlo_opt.core.jobs.folder import FolderFiles
from nnlo_opt.core.trials.sharing import FOLDER

LATE_S = 5.0


class LateFiles(FolderFiles):
    """Files of jobs, seen late."""

    def __init__(self, run: Path) -> None:
        super().__init__(run)
        self._place = run / FOLDER
        self._own: set[str] = set()
        #: name -> (time from which on so many bytes are seen, number of bytes)
        self._due: dict[str, list[tuple[float, int]]] = {}

    def read(self, name: str, start: int = 0, most: int = MOST_NEW_BYTES) -> bytes | None:
        data = super().read(name, start, most)
        if data is None or name in self._own:
            return data
        status, now_s = os.stat(self._place / name), time.time()
        if now_s - status.st_mtime > LATE_S:
            return data
        due = self._due.setdefault(name, [])
        if not due or due[-1][1] < status.st_size:
            # Half a line may be seen, too.
            seen = random.randint(due[-1][1] if due else 0, status.st_size)
            due += [(now_s + random.uniform(0.0, LATE_S), size) for size in (seen, status.st_size)]
        n_seen = max((size for due_s, size in due if due_s <= now_s), default=0)
        return data[: n_seen - start] if n_seen > start else (b"" if n_seen else None)

    def create(self, name: str, data: bytes) -> bool:
        won = super().create(name, data)
        self._own |= {name} if won else set()
        return won

    def append(self, name: str, data: bytes) -> None:
        super().append(name, data)
        self._own.add(name)

    def replace(self, name: str, data: bytes) -> None:
        super().replace(name, data)
        self._own.add(name)


def main() -> None:
    place: Any = shared_run
    place.FolderFiles = LateFiles
    script("OptimizationDriver")


if __name__ == "__main__":
    sys.exit(main())
