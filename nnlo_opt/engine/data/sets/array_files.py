"""The user's samples from files of NumPy arrays."""

from pathlib import Path

import numpy as np

from nnlo_opt.core.base.errors import ConfigurationError
from nnlo_opt.core.base.files import regular
from nnlo_opt.engine.data.sets.image_files import Images, ImageSet


class ArraySamples(Images):
    """Features x (n, ...) and labels y (n, ...), written unchanged."""

    def as_samples(self) -> tuple[np.ndarray, np.ndarray]:
        """Features and labels."""
        return self.x, self.y


def samples_from_arrays(features: Path, labels: Path, share: float, seed: int) -> ImageSet:
    """Return the samples of two `.npy` files, with a random `share` (from `seed`) as test set.

    Raises:
        ConfigurationError: naming the file, if it is not an array of finite numbers, if the numbers of samples differ,
            or if the share leaves the training or test set empty.
    """
    x, y = _array(features), _array(labels)
    if len(x) != len(y):
        raise ConfigurationError(
            f"Features and labels must have one row for each sample. Received: {len(x):,} rows of shape {x.shape[1:]} "
            f"in {features} and {len(y):,} rows of shape {y.shape[1:]} in {labels}. Give arrays of the same samples."
        )
    n_test = round(share * len(x))
    if not 0 < n_test < len(x):
        raise ConfigurationError(
            f"`--split` must leave samples to train on and samples to validate with. Received: {share:g} of "
            f"{len(x):,} samples. Give another share, such as 0.2, or more samples."
        )
    order = np.random.default_rng(seed).permutation(len(x))
    samples = ArraySamples(x, y)
    return ImageSet(samples[order[n_test:]], samples[order[:n_test]], f"{features} and {labels}")


def _array(path: Path) -> np.ndarray:
    try:
        array = np.load(regular(path), allow_pickle=False)
        fault = _fault_of(array)
    except Exception as error:  # zip and npy readers raise half a dozen kinds
        fault = str(error).partition("\n")[0] or type(error).__name__
    if fault:
        raise ConfigurationError(
            f"An array must be in a .npy file, a row of finite numbers for each sample. Received: {path} ({fault}). "
            "Write it with `numpy.save`."
        )
    return array


def _fault_of(array: object) -> str:
    """Return why the content of a file is not an array of samples; empty if it is."""
    if not isinstance(array, np.ndarray):
        return "several arrays"
    if array.ndim == 0 or array.dtype.kind not in "iufb":
        return f"{array.dtype} of shape {array.shape}"
    wrong = np.argwhere(~np.isfinite(array))
    return f"{array[tuple(wrong[0])]} in row {wrong[0][0]}" if len(wrong) else ""
