"""Model of small photographs in ten classes, 32 x 32 pixels in colour, with data from `GetData cifar10`."""

from typing import Any

from nnlo_opt.models.builtin._convnet import convnet
from nnlo_opt.models.data_files import find_lists
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


def get_deep_model(
    nb_filters1: int = 48,
    nb_filters2: int = 96,
    nb_filters3: int = 192,
    kernel_size: int = 3,
    pool_size: int = 2,
    **dense: Any,
) -> Any:
    """Return a model of three convolutions with poolings and three dense layers, as NNLO's is.

    Args:
        dense: units `dense1` (512) and `dense2` (256), rates of dropout `dropout1` (0.25) and `dropout2` (0.5).
    """
    import keras
    from keras import layers

    model = keras.Sequential([keras.Input((32, 32, 3))])
    for n_filters in (nb_filters1, nb_filters2, nb_filters3):
        model.add(layers.Conv2D(n_filters, kernel_size, padding="same", activation="relu"))
        model.add(layers.MaxPooling2D(pool_size))
    model.add(layers.Flatten())
    for number, (n_units, rate) in enumerate(((512, 0.25), (256, 0.5)), 1):
        model.add(layers.Dense(dense.get(f"dense{number}", n_units), activation="relu"))
        model.add(layers.Dropout(dense.get(f"dropout{number}", rate)))
    model.add(layers.Dense(10, activation="softmax"))
    return model


deep_parameter_range = [
    *(Integer(10, 300, name=f"nb_filters{number}") for number in (1, 2, 3)),
    *(Integer(50, 1000, name=f"dense{number}") for number in (1, 2)),
    *(Real(0.0, 0.9, name=f"dropout{number}") for number in (1, 2)),
]

get_train, get_val = find_lists("cifar10")


def get_features() -> str:
    """Return the name of the images (n, 32, 32, 3), float32 in 0..1."""
    return "features"


def get_labels() -> str:
    """Return the name of the one-hot classes (n, 10)."""
    return "labels"
