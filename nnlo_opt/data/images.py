"""Labelled images of ten classes, before they are written to data files."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from nnlo_opt.errors import ConfigurationError

N_CLASSES = 10

#: shape of one image (height, width, colours) of each set
IMAGE_SHAPES: dict[str, tuple[int, int, int]] = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3)}


@dataclass(frozen=True, slots=True, eq=False)
class Images:
    """Images x (n, height, width, colours) uint8 and their classes y (n,) uint8, from 0 to 9."""

    x: NDArray[np.uint8]
    y: NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, chosen: slice | NDArray) -> "Images":
        return Images(self.x[chosen], self.y[chosen])

    def as_samples(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Features (n, height, width, colours) from 0 to 1 and one-hot labels (n, 10)."""
        return self.x.astype(np.float32) / np.float32(255), np.eye(N_CLASSES, dtype=np.float32)[self.y]


@dataclass(frozen=True, slots=True, eq=False)
class ImageSet:
    """Images to train on and to test with, and a short description of their source."""

    train: Images
    test: Images
    source: str

    def __len__(self) -> int:
        return len(self.train) + len(self.test)

    def shuffled(self, seed: int) -> "ImageSet":
        """Return both parts in an order that `seed` decides."""
        rng = np.random.default_rng(seed)
        train, test = (part[rng.permutation(len(part))] for part in (self.train, self.test))
        return replace(self, train=train, test=test)

    def first(self, n_samples: int) -> "ImageSet":
        """Return the first `n_samples` >= 2 images, with the proportion of training and test images of the full set."""
        n = min(n_samples, len(self))
        n_test = min(max(1, round(n * len(self.test) / len(self))), n - 1)
        return replace(self, train=self.train[: n - n_test], test=self.test[:n_test])


def checked_images(x: NDArray, y: NDArray, name: str, source: str) -> Images:
    """Return `Images` of the set `name` from stored pixels and classes.

    Args:
        x: pixels from 0 to 255, (n, *image shape); an axis of a single colour may be missing.
        y: classes from 0 to 9, (n,) or (n, 1), n >= 1.
        name: "mnist" or "cifar10".
        source: source of the images, for messages.

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


def _whole_numbers(values: NDArray, highest: int) -> bool:
    return values.dtype.kind in "iu" and bool(values.min() >= 0) and bool(values.max() <= highest)
