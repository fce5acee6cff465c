"""Download of image sets, into the folder that Keras uses for its own."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pooch

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.engine.data.sets.image_files import CIFAR10_BINARY_URL, ImageSet, images_from_file

#: seconds to wait for a server; without a network the error may come only then
ANSWER_TIMEOUT_S = 15.0
#: seconds without new data before the download is retried
STALL_TIMEOUT_S = 20.0
#: seconds between two progress lines
PROGRESS_S = 2.0
#: data set -> URL and SHA-256 of its file. mnist is the same file that Keras uses; for CIFAR-10 Keras uses a pickled
#: archive, this one has the same images without pickle
_FILES = {
    "mnist": (
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz",
        "731c5ac602752760c8e48fbffcf8c3b850d9dc2a2aedcf2cc48468fc17b673d1",
    ),
    "cifar10": (CIFAR10_BINARY_URL, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
}


class Progress:
    """Prints progress lines at most every `PROGRESS_S` seconds; has the interface of pooch's progress bars.

    Args:
        say: prints a line.
        total: amount of all work, for example bytes.
        unit: unit in the printed lines; it equals `size` of the reported amounts.
    """

    def __init__(self, say: Callable[[str], None], total: int = 0, unit: str = "MB", size: float = 1e6) -> None:
        self._say, self._unit, self._size = say, unit, size
        #: total work, work done so far, time of the last line
        self.total, self._n_done, self._said_at_s = total, 0, time.monotonic()

    def update(self, n_done: int) -> None:
        """Add finished work."""
        self._n_done = min(self._n_done + n_done, self.total)
        if time.monotonic() - self._said_at_s >= PROGRESS_S:
            self._said_at_s = time.monotonic()
            self._say(f"  {self._n_done / self._size:,.4g} of {self.total / self._size:,.4g} {self._unit}")

    def reset(self) -> None:
        """Restart at zero."""
        self._n_done = 0

    def close(self) -> None:
        """Do nothing; pooch calls it at the end."""


def downloaded_images(name: str, say: Callable[[str], None] = lambda line: None) -> ImageSet:
    """Return the images of the data set `name` ("mnist", "cifar10"), downloaded unless Keras's folder has the file.

    Args:
        name: the data set.
        say: prints progress lines.

    Raises:
        ConfigurationError: the file is missing, and cannot be downloaded or written.
    """
    url, sha256 = _FILES[name]
    file_name = url.rpartition("/")[2]
    home = Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")
    store = pooch.create(home / "datasets", "", registry={file_name: sha256}, urls={file_name: url}, retry_if_failed=1)
    pooch.get_logger().setLevel("WARNING")
    reason = None
    if not (home / "datasets" / file_name).exists():
        say(f"Downloading {url} to {home / 'datasets'}")
        reason = why_unreachable(url, ANSWER_TIMEOUT_S)
    try:
        if reason is None:
            get = pooch.HTTPDownloader(progressbar=Progress(say), chunk_size=1 << 20, timeout=STALL_TIMEOUT_S)
            path = store.fetch(file_name, downloader=get)
            return images_from_file(name, Path(path))
    except (OSError, ValueError) as error:
        reason = _cause(error)
    remedy = f"Download {url} on a machine with a network, and use `--source FILE` with the file."
    if name == "mnist":
        remedy = "Use `--source bundled`, or `--source FILE` with a copy of Keras's mnist.npz."
    raise ConfigurationError(f"`{name}` must be downloaded from {url}. Received: {reason}. {remedy}")


def why_unreachable(url: str, timeout_s: float) -> str | None:
    """Return why the server of `url` does not answer, or None if it does; takes at most `timeout_s`."""
    answer: list[str | None] = []

    def ask() -> None:
        try:
            # An HTTP error is also an answer.
            pooch.HTTPDownloader(timeout=timeout_s)(url, None, None, check_only=True)
            answer.append(None)
        except OSError as error:
            answer.append(_cause(error))

    # pooch tries all addresses of a server in turn, and name resolution has no time limit: so use a thread, and abandon
    # it after the time-out.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return answer[0] if answer else f"no answer for {timeout_s:g} s"


def _cause(error: BaseException) -> str:
    """Return the text of the first error of a chain."""
    while error.__context__ is not None:
        error = error.__context__
    return str(error) or type(error).__name__
