"""Recurrent tagger of jets, 150 constituents with 16 features, with data from `GetData jets`."""

from typing import Any

import numpy as np

from nnlo_opt.models.data_files import find_lists
from nnlo_opt.space import Categorical, Integer, Real


def get_model(
    GRU_units: int = 50,
    DNN_neurons: int = 100,
    DNN_layers: int = 4,
    activation: str = "elu",
    dropout: float = 0.1,
) -> Any:
    """Return gated recurrent units that read the constituents, the hardest last, and dense layers behind them."""
    import keras
    from keras import layers

    model = keras.Sequential([keras.Input((16, 150)), layers.Permute((2, 1))])
    model.add(layers.GRU(GRU_units, recurrent_activation="hard_sigmoid", go_backwards=True, name="gru"))
    for number in range(DNN_layers):
        model.add(layers.Dropout(dropout))
        model.add(
            layers.Dense(DNN_neurons, activation=activation, kernel_initializer="lecun_uniform", name=f"dense_{number}")
        )
    model.add(layers.Dense(5, activation="softmax", name="output"))
    return model


parameter_range = [
    Integer(20, 300, name="GRU_units"),
    Integer(20, 100, name="DNN_neurons"),
    Integer(1, 5, name="DNN_layers"),
    Categorical(["relu", "selu", "elu"], name="activation"),
    Real(0.0, 0.9, name="dropout"),
]

get_train, get_val = find_lists("jets")


def _turned(x: np.ndarray) -> np.ndarray:
    """Return features (n, 16, 150) of constituents (n, 150, 16), about as large as 1; momenta become logarithms."""
    x = np.swapaxes(x, 1, 2).copy()
    x[:, :6] = np.sign(x[:, :6]) * np.log1p(np.abs(x[:, :6])) / 5
    x[:, [6, 8, 9, 11, 12, 13]] *= 10  # share of the momentum, angles to the axis
    return x


def get_features() -> tuple[str, Any]:
    """Return the name of the constituents (n, 150, 16), and the function that is applied to them."""
    return "jetConstituentList", _turned


def get_labels() -> tuple[str, Any]:
    """Return the name of the figures of the jets, whose columns include the one-hot classes."""
    return "jets", lambda y: y[:, -6:-1]
