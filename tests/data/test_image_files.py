import io
import tarfile
from pathlib import Path

import numpy as np
import pytest

from nnlo_opt.data.image_files import bundled_digits, images_from_file
from nnlo_opt.errors import ConfigurationError

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
    with pytest.raises(ConfigurationError) as caught:
        images_from_file(name, path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


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
