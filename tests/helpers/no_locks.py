"""File system without locks: a library that is loaded before the C library, and answers `flock` with an error."""

import os
import shutil
import subprocess
from pathlib import Path

_SOURCE = """
#include <errno.h>
#include <stdlib.h>
int flock(int fd, int how) { errno = atoi(getenv("NO_LOCKS_ERRNO")); return -1; }
"""
_SITE = """
import fcntl, os
def flock(file, how):
    number = int(os.environ["NO_LOCKS_ERRNO"])
    raise OSError(number, os.strerror(number))
fcntl.flock = flock
"""


def without_locks(folder: Path, number: int) -> dict[str, str]:
    """Return the environment of processes to which `flock` answers with this error number."""
    environment = os.environ | {"NO_LOCKS_ERRNO": str(number)}
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        (folder / "sitecustomize.py").write_text(_SITE)
        return environment | {"PYTHONPATH": f"{folder}:{os.environ.get('PYTHONPATH', '')}"}
    (folder / "no_locks.c").write_text(_SOURCE)
    library = folder / "no_locks.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, folder / "no_locks.c"], check=True)
    return environment | {"LD_PRELOAD": str(library)}
