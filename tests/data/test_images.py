import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.data.image_files import Images, ImageSet, checked_images
from nnlo_opt.errors import ConfigurationError


def image_set(n_train: int, n_test: int) -> ImageSet:
    """Digits whose first pixel is their number."""
    x = np.zeros((n_train + n_test, 28, 28, 1), np.uint8)
    x[:, 0, 0, 0] = np.arange(len(x))
    images = Images(x, (np.arange(len(x)) % 10).astype(np.uint8))
    return ImageSet(images[:n_train], images[n_train:], "a test")


def numbers(images: Images) -> list[int]:
    assert np.array_equal(images.x[:, 0, 0, 0] % 10, images.y)
    return images.x[:, 0, 0, 0].tolist()


def test_samples_are_scaled_and_one_hot() -> None:
    x, y = Images(np.array([[[[0]]], [[[255]]], [[[51]]]], np.uint8), np.array([9, 0, 3], np.uint8)).as_samples()
    assert x.dtype == y.dtype == np.float32
    assert x.ravel().tolist() == [0.0, 1.0, np.float32(0.2)]
    assert np.array_equal(y, np.eye(10)[[9, 0, 3]])


def test_shuffling_mixes_each_part_for_itself() -> None:
    images = image_set(50, 20)
    shuffled = images.shuffled(3)
    assert sorted(numbers(shuffled.train)) == list(range(50))
    assert sorted(numbers(shuffled.test)) == list(range(50, 70))
    assert numbers(shuffled.train) == numbers(images.shuffled(3).train) != numbers(images.shuffled(4).train)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(2, 130))
def test_first_keeps_the_proportion(n_train: int, n_test: int, n_samples: int) -> None:
    images = image_set(n_train, n_test)
    first = images.first(n_samples)
    assert len(first) == min(n_samples, len(images))
    assert min(len(first.train), len(first.test)) >= 1
    assert abs(len(first.test) - len(first) * n_test / len(images)) <= 1


def test_what_loaders_return_is_accepted() -> None:
    for shape in ((3, 28, 28), (3, 28, 28, 1)):
        images = checked_images(np.full(shape, 7, np.int64), np.array([[1], [2], [9]]), "mnist", "here")
        assert images.x.shape == (3, 28, 28, 1)
        assert images.x.dtype == images.y.dtype == np.uint8
        assert images.y.tolist() == [1, 2, 9]
    assert checked_images(np.zeros((2, 32, 32, 3), np.uint8), np.zeros(2, int), "cifar10", "here").x.shape[0] == 2


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (np.zeros((2, 28, 27), np.uint8), np.zeros(2, int)),
        (np.zeros((0, 28, 28), np.uint8), np.zeros(0, int)),
        (np.zeros((), np.uint8), np.zeros(0, int)),
        (np.zeros((2, 28, 28)), np.zeros(2, int)),
        (np.full((2, 28, 28), 256), np.zeros(2, int)),
        (np.full((2, 28, 28), -1), np.zeros(2, int)),
        (np.zeros((2, 28, 28), np.uint8), np.zeros(3, int)),
        (np.zeros((2, 28, 28), np.uint8), np.zeros(2)),
        (np.zeros((2, 28, 28), np.uint8), np.array([0, 10])),
    ],
)
def test_anything_else_is_refused_with_its_source(x: np.ndarray, y: np.ndarray) -> None:
    with pytest.raises(ConfigurationError, match="from here"):
        checked_images(x, y, "mnist", "here")
