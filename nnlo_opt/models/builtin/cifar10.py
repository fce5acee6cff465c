"""Model of small photographs in ten classes, images of (32, 32, 3), with data from `GetData cifar10`."""

from pathlib import Path
from typing import Any

from nnlo_opt.models.builtin._convnet import convnet
from nnlo_opt.models.data_files import find_list
from nnlo_opt.space import Integer, Real


def get_model(
    nb_filters1: int = 32, nb_filters2: int = 64, kernel_size: int = 3, dense: int = 512, dropout: float = 0.5
) -> Any:
    """Return a model of two stages and two dense layers, with 2.2 million weights by default."""
    return convnet((32, 32, 3), [nb_filters1, nb_filters2], kernel_size, 2, dense, dropout)


parameter_range = [
    Integer(16, 64, name="nb_filters1"),
    Integer(16, 128, name="nb_filters2"),
    Integer(2, 5, name="kernel_size"),
    Integer(64, 512, name="dense"),
    Real(0.0, 0.7, name="dropout"),
]


def get_train() -> Path:
    """Return the list of training files."""
    return find_list("data/cifar10/train_cifar10.list", "GetData cifar10")


def get_val() -> Path:
    """Return the list of validation files."""
    return find_list("data/cifar10/test_cifar10.list", "GetData cifar10")


def get_features() -> str:
    """Return the name of the images (n, 32, 32, 3), float32 in 0..1."""
    return "features"


def get_labels() -> str:
    """Return the name of the one-hot classes (n, 10)."""
    return "labels"
