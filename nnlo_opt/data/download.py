"""Images from the network, by Keras's loader in a process of its own."""

import os
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
from dataclasses import dataclass, replace
from pathlib import Path

import nnlo_opt
from nnlo_opt.data.image_files import CIFAR10_BINARY_URL, images_from_npz
from nnlo_opt.data.images import ImageSet
from nnlo_opt.errors import ConfigurationError

#: a server that has not answered after so long is not there; a machine without a network may know only then
ANSWER_TIMEOUT_S = 15.0
#: for the whole of a download
DOWNLOAD_TIMEOUT_S = 1800.0


@dataclass(frozen=True, slots=True)
class _Download:
    #: where Keras's loader takes the data set from
    url: str
    #: where it keeps what it took, below its home folder
    cached: str


_DOWNLOADS = {
    "mnist": _Download(
        "https://storage.googleapis.com/tensorflow/tf-keras-datasets/mnist.npz",
        "datasets/mnist.npz",
    ),
    "cifar10": _Download(
        "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
        "datasets/cifar-10-batches-py-target_archive",
    ),
}


def images_from_keras(name: str) -> ImageSet:
    """The data set `name` ("mnist", "cifar10") as Keras's loader downloads it, or finds it in its cache.

    Raises `ConfigurationError` if it is not in the cache and the server does not answer within `ANSWER_TIMEOUT_S`, or
    the loader fails.
    """
    download = _DOWNLOADS[name]
    if not (_keras_home() / download.cached).exists():
        reason = why_unreachable(download.url, ANSWER_TIMEOUT_S)
        if reason is not None:
            raise ConfigurationError(f"Keras's loader needs {download.url}. Received: {reason}. {_remedy(name)}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.npz"
        reason = _run_loader(name, path)
        if reason is not None:
            raise ConfigurationError(f"Keras's loader must deliver {name}. Received: {reason}. {_remedy(name)}")
        return replace(images_from_npz(name, path), source="Keras's loader")


def why_unreachable(url: str, timeout_s: float) -> str | None:
    """Why the server of `url` does not answer, or None if it does; never takes longer than `timeout_s`."""
    answer: list[str | None] = []

    def ask() -> None:
        try:
            request = urllib.request.Request(url, method="HEAD")
            # An opener of our own: `urlopen` keeps the proxies of its first call.
            urllib.request.build_opener().open(request, timeout=timeout_s).close()
            answer.append(None)
        except urllib.error.HTTPError:
            answer.append(None)  # a refusal is an answer too
        except Exception as error:
            answer.append(str(getattr(error, "reason", error)))

    # The look-up of a name knows no time-out, and every address of a server has its own: so a thread, left behind.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return answer[0] if answer else f"no answer for {timeout_s:g} s"


def _run_loader(name: str, path: Path) -> str | None:
    """Run the loader, which writes `path`; why it failed, or None."""
    package = str(Path(nnlo_opt.__file__).parent.parent)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")])),
        "KERAS_BACKEND": "tensorflow",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "CUDA_VISIBLE_DEVICES": "",
    }
    try:
        # -P: a module of the user's folder does not come before one of ours or Keras's.
        loader = subprocess.run(
            [sys.executable, "-P", "-m", "nnlo_opt.data.keras_datasets", name, str(path)],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {DOWNLOAD_TIMEOUT_S:g} s"
    if loader.returncode == 0:
        return None
    lines = loader.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {loader.returncode}"


def _keras_home() -> Path:
    return Path(os.environ.get("KERAS_HOME") or Path.home() / ".keras")


def _remedy(name: str) -> str:
    if name == "mnist":
        return "Use `--source bundled`, or `--source FILE` with a copy of Keras's mnist.npz."
    return f"Download {CIFAR10_BINARY_URL} where there is a network, and use `--source FILE` with it."
