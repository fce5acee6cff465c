import io
import tarfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnlo_opt.engine.data.sets.image_files import Images, ImageSet, bundled_digits, checked_images, images_from_file
from tests.helpers.refusals import refusal

RNG = np.random.default_rng(0)


def pack(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def records(x: np.ndarray, y: np.ndarray) -> bytes:
    """Images (n, 32, 32, 3) and classes (n,) as CIFAR-10's page describes its binary version."""
    return b"".join(
        bytes([label]) + b"".join(image[:, :, colour].tobytes() for colour in range(3))
        for image, label in zip(x, y, strict=True)
    )


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    return {
        "x_train": RNG.integers(0, 256, (12, 28, 28), np.uint8),
        "y_train": RNG.integers(0, 10, 12, np.uint8),
        "x_test": RNG.integers(0, 256, (5, 28, 28), np.uint8),
        "y_test": RNG.integers(0, 10, 5, np.uint8),
    }


def refused(name: str, path: Path) -> str:
    return refusal(images_from_file, name, path, says=[str(path)])


def test_npz(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    np.savez(tmp_path / "mnist.npz", **arrays)  # type: ignore[arg-type]
    images = images_from_file("mnist", tmp_path / "mnist.npz")
    assert np.array_equal(images.train.x[..., 0], arrays["x_train"])
    assert np.array_equal(images.test.y, arrays["y_test"])
    assert str(tmp_path / "mnist.npz") in images.source


def test_npz_that_cannot_be(tmp_path: Path, arrays: dict[str, np.ndarray]) -> None:
    path = tmp_path / "mnist.npz"
    assert "not a file" in refused("mnist", path)
    np.savez(path, **(arrays | {"y_train": arrays["y_train"].astype(object)}))  # type: ignore[arg-type]
    assert "none of them pickled" in refused("mnist", path)
    np.savez_compressed(path, x_train=arrays["x_train"])
    assert "y_train" in refused("mnist", path)
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    refused("mnist", path)
    path.write_bytes(content[:300] + bytes(20) + content[320:])
    refused("mnist", path)
    path.write_bytes(b"")
    refused("mnist", path)


def test_cifar10_archive(tmp_path: Path) -> None:
    x, y = RNG.integers(0, 256, (9, 32, 32, 3), np.uint8), RNG.integers(0, 10, 9)
    batches = {"data_batch_2.bin": records(x[4:7], y[4:7]), "data_batch_1.bin": records(x[:4], y[:4])}
    files = {"readme.html": b"<html>", **batches, "test_batch.bin": records(x[7:], y[7:])}
    images = images_from_file("cifar10", pack(tmp_path / "cifar-10-binary.tar.gz", files))
    assert np.array_equal(images.train.x, x[:7])
    assert np.array_equal(images.train.y, y[:7])
    assert np.array_equal(images.test.x, x[7:])
    assert np.array_equal(images.test.y, y[7:])


def test_cifar10_archives_that_cannot_be(tmp_path: Path) -> None:
    path = tmp_path / "cifar.tar.gz"
    pack(path, {"data_batch_1": b"", "test_batch": b""})
    assert "pickled version" in refused("cifar10", path)
    pack(path, {"data_batch_1.bin": bytes(3073)})
    assert "test_batch.bin" in refused("cifar10", path)
    pack(path, {"data_batch_1.bin": bytes(3073), "test_batch.bin": bytes(3072)})
    assert "3072 bytes" in refused("cifar10", path)
    pack(path, {"data_batch_1.bin": b"\x0a" + bytes(3072), "test_batch.bin": bytes(3073)})
    assert "from 0 to 9" in refused("cifar10", path)
    pack(path, {"data_batch_1.bin": RNG.bytes(3073), "test_batch.bin": bytes(3073)})
    path.write_bytes(path.read_bytes()[:1000])
    assert "complete" in refused("cifar10", path)


def test_files_of_no_known_kind(tmp_path: Path) -> None:
    path = tmp_path / "cifar.tar.gz"
    path.touch()
    assert "must be a .npz file like" in refused("mnist", path)
    path = path.rename(tmp_path / "cifar.zip")
    assert "cifar-10-binary.tar.gz" in refused("cifar10", path)


@pytest.mark.proof
def test_bundled_digits() -> None:
    digits = bundled_digits(seed=0)
    assert (len(digits.train), len(digits.test)) == (4200, 800)
    assert np.bincount(digits.train.y).tolist() == [420] * 10
    assert np.bincount(digits.test.y).tolist() == [80] * 10
    assert digits.train.x.shape[1:] == (28, 28, 1)
    assert digits.train.x.max() == 255
    assert not {image.tobytes() for image in digits.train.x} & {image.tobytes() for image in digits.test.x}
    assert np.array_equal(bundled_digits(seed=0).test.x, digits.test.x)
    assert not np.array_equal(bundled_digits(seed=1).test.x, digits.test.x)


# ---------------------------------------------------------------- images in memory


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
    assert "from here" in refusal(checked_images, x, y, "mnist", "here")
