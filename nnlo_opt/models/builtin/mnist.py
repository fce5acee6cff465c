"""Model of handwritten digits, 28 x 28 pixels in grey, with data from `GetData mnist`."""

from typing import Any

from nnlo_opt.models.builtin._convnet import convnet
from nnlo_opt.models.data_files import find_lists
from nnlo_opt.space import Integer, Real


def get_model(
    nb_filters: int = 32, pool_size: int = 2, kernel_size: int = 3, dense: int = 128, dropout: float = 0.5
) -> Any:
    """Return a model of two convolutions, a pooling and two dense layers, with 1.2 million weights by default."""
    return convnet((28, 28, 1), [nb_filters], kernel_size, pool_size, dense, dropout)


parameter_range = [
    Integer(8, 32, name="nb_filters"),
    Integer(2, 4, name="pool_size"),
    Integer(2, 5, name="kernel_size"),
    Integer(50, 200, name="dense"),
    Real(0.0, 0.7, name="dropout"),
]

get_train, get_val = find_lists("mnist")


def get_features() -> str:
    """Return the name of the images (n, 28, 28, 1), float32 in 0..1."""
    return "features"


def get_labels() -> str:
    """Return the name of the one-hot classes (n, 10)."""
    return "labels"
