"""Model of images of collisions (150 x 94 x 5) in three classes, with data from `GetData topclass`."""

from typing import Any

from nnlo_opt.models.data_files import find_lists
from nnlo_opt.space import Integer, Real


def get_model(
    conv_layers: int = 2,
    dense_layers: int = 2,
    kernel_size: int = 3,
    dropout: float = 0.2,
    pool: int = 10,
    hidden_factor: int = 5,
) -> Any:
    """Return a classifier whose last convolution makes one image of half the size."""
    import keras
    from keras import layers

    model = keras.Sequential([keras.Input((150, 94, 5))])
    for number in range(conv_layers):
        model.add(layers.Conv2D(max(1, 5 * ((number + 2) % 5)), kernel_size, padding="same", activation="relu"))
    model.add(layers.Conv2D(1, kernel_size, strides=2, padding="same", activation="relu"))
    model.add(layers.MaxPooling2D(pool))
    model.add(layers.Flatten())
    for number in range(dense_layers):
        model.add(layers.Dense(hidden_factor * 100 // 2 ** (number + 1), activation="relu"))
        model.add(layers.Dropout(dropout))
    model.add(layers.Dense(3, activation="softmax"))
    return model


parameter_range = [
    Integer(1, 6, name="conv_layers"),
    Integer(1, 6, name="dense_layers"),
    Integer(1, 6, name="kernel_size"),
    Real(0.0, 0.9, name="dropout"),
]

get_train, get_val = find_lists("topclass")


def get_features() -> str:
    """Return the name of the images (n, 150, 94, 5): tracks, photons, hadrons, leptons, missing energy."""
    return "Images"


def get_labels() -> str:
    """Return the name of the one-hot classes (n, 3): two jets, a W boson, two top quarks."""
    return "Labels"
