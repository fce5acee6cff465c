"""Program that uses a file system like a run uses its directory, in a temporary folder.

Each line of its standard output is a JSON object. The name of a step is printed before it begins, because it may fail
or hang.
"""

import fcntl
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.files import NO_LOCKS, atomic_write, write_fully
from nnlo_opt.core.trials.run_lock import launcher_of

#: most megabytes to write, and largest share of the free space to use; number of lines synced individually
_N_MB, _SHARE, _N_LINES = 64, 0.1, 10


def _written_s(file: int, data: bytes, n_times: int) -> float:
    begun_s = time.perf_counter()
    for _ in range(n_times):
        write_fully(file, data)
    os.fsync(file)
    return time.perf_counter() - begun_s


def steps(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield the name of each step, then its measurements; OSError if the file system fails."""
    yield {"step": "write", "free_mb": (free_mb := shutil.disk_usage(folder).free / 1e6)}
    with tempfile.TemporaryDirectory(prefix=".nnlo_opt-doctor-", dir=folder, ignore_cleanup_errors=True) as name:
        place = Path(name)
        with open(place / "data", "wb", buffering=0) as file:
            n_mb = max(1, int(min(_N_MB, _SHARE * free_mb)))
            yield {"mb_per_s": n_mb / _written_s(file.fileno(), os.urandom(10**6), n_mb)}
            lines_s = [_written_s(file.fileno(), b"{}\n", 1) for _ in range(_N_LINES)]
        yield {"line_ms": 1e3 * sum(lines_s) / _N_LINES, "step": "replace"}
        for text in ("first", "second"):
            atomic_write(place / "file", text)
            if (place / "file").read_text() != text:
                raise OSError("a file that was replaced has its former content")
        yield {"step": "lock"}
        yield {"locks": _has_locks(place / "file")}
        with launcher_of(place):
            is_out = _is_kept_out(place)
        yield {"excludes": is_out and not _is_kept_out(place)}


def _has_locks(file: Path) -> bool:
    """Return False if the file system does not support locks."""
    with file.open("rb") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            return False
    return True


def _is_kept_out(place: Path) -> bool:
    """Return True if another process cannot get the lock of `place`."""
    if (pid := os.fork()) == 0:
        try:
            with launcher_of(place):
                os._exit(0)
        except ConfigurationError:
            os._exit(1)
    return os.waitpid(pid, 0)[1] != 0


if __name__ == "__main__":
    for found in steps(Path(sys.argv[1])):
        os.write(1, (json.dumps(found) + "\n").encode())
