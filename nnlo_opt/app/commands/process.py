"""Set-up and output checks of a command's process."""

import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import TextIOWrapper

from nnlo_opt.core.base.errors import EXIT_OK, EXIT_WRONG_REQUEST

#: open files that MPI, the journal and the pipes of a rank need
LEAST_FILES = 64


class HelpRequested(Exception):
    """Raised to print a text, for example of `--help` or `--version`, and exit.

    Args:
        text: text, ending with a newline.
        code: exit code of the command.
    """

    def __init__(self, text: str, code: int = EXIT_OK) -> None:
        super().__init__(text)
        self.code = code


def begin(*, starts_ranks: bool = False) -> None:
    """Refuse to start without standard streams, a working folder or enough open files; escape control characters.

    If a standard stream were closed, the next opened file would get its number, and then the printed text.
    """
    while (spare := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(spare)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    wrong, n_files = "", resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    try:
        os.getcwd()
    except OSError:
        wrong = "A command must start in a folder that exists. Received: one that was removed."
    if sys.stdout is None:
        wrong = "Standard output must be open. Received: a closed one (`>&-`). Send it to a file, or to `/dev/null`."
    elif starts_ranks and 0 <= n_files < LEAST_FILES:
        wrong = f"A rank must be allowed {LEAST_FILES} open files. Received: {n_files}. Raise it by `ulimit -n 1024`."
    if wrong:
        print(wrong, file=sys.stderr)
        sys.exit(EXIT_WRONG_REQUEST)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextmanager
def checked_output() -> Iterator[None]:
    """Exit with an error if text written in the context is lost."""
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except OSError as error:
        if error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that Python does not fail again at exit
        if isinstance(error, BrokenPipeError):  # the reader of the pipe (`| head`) has gone
            sys.exit(EXIT_OK)
        what = f"Received: {error.strerror or error}. Free some space, or send the output elsewhere."
        with suppress(OSError):
            print(f"A command must be able to write its output and files. {what}", file=sys.stderr)
        sys.exit(EXIT_WRONG_REQUEST)
