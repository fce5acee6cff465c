import numpy as np
import pytest

from nnlo_opt.errors import ConfigurationError
from nnlo_opt.models.losses import LOSSES, check_loss, infer_loss, label_mismatch, metric_for


@pytest.mark.parametrize(
    ("activation", "output", "label", "dtype", "values", "expected"),
    [
        ("softmax", (10,), (10,), "f4", None, "categorical_crossentropy"),
        ("softmax", (10,), (), "i8", None, "sparse_categorical_crossentropy"),
        ("softmax", (10,), (1,), "f4", [[3.0], [9.0]], "sparse_categorical_crossentropy"),
        ("softmax", (7, 10), (7,), "u1", None, "sparse_categorical_crossentropy"),
        ("sigmoid", (1,), (), "f4", [0.0, 1.0], "binary_crossentropy"),
        ("sigmoid", (5,), (5,), "i4", None, "binary_crossentropy"),
        ("sigmoid", (1,), (1,), "f4", [[0.3]], "mean_squared_error"),
        (None, (1,), (), "f4", None, "mean_squared_error"),
        ("relu", (3,), (3,), "f4", [[0, 1, 2]], "mean_squared_error"),
    ],
)
def test_inferred_losses(activation, output, label, dtype, values, expected):
    hint = None if values is None else np.array(values)
    inferred = infer_loss(activation, output, label, np.dtype(dtype), hint)
    assert inferred.name == expected
    assert (activation or "linear") in inferred.why


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, name) for name in LOSSES),
        ("mse", "mean_squared_error"),
        ("MeanSquaredError", "mean_squared_error"),
        ("BCELoss", "binary_crossentropy"),
        ("L1Loss", "mean_absolute_error"),
        ("KLDiv", "kl_divergence"),
    ],
)
def test_known_losses(name, expected):
    assert check_loss(name) == expected


def test_unknown_losses():
    with pytest.raises(ConfigurationError, match=r"'crossentropi'. Choose one of: .*binary_crossentropy"):
        check_loss("crossentropi")
    with pytest.raises(ConfigurationError, match="huber"):
        check_loss("?")


@pytest.mark.parametrize(
    ("loss", "activation", "expected"),
    [
        ("categorical_crossentropy", "softmax", "categorical"),
        ("sparse_categorical_crossentropy", None, "sparse_categorical"),
        ("binary_crossentropy", "sigmoid", "binary"),
        ("binary_crossentropy", "softmax", "categorical"),
        ("mean_squared_error", None, None),
    ],
)
def test_accuracy(loss, activation, expected):
    assert metric_for(loss, activation) == expected


@pytest.mark.parametrize(
    ("loss", "output", "label", "fits"),
    [
        ("categorical_crossentropy", (10,), (10,), True),
        ("categorical_crossentropy", (10,), (), False),
        ("sparse_categorical_crossentropy", (10,), (), True),
        ("sparse_categorical_crossentropy", (10,), (1,), True),
        ("sparse_categorical_crossentropy", (10,), (10,), False),
        ("mean_squared_error", (1,), (), True),
        ("mean_squared_error", (), (1,), True),
        ("mean_squared_error", (3,), (1,), False),
        ("mean_squared_error", (None, 3), (7, 3), True),
        (None, (10,), (), True),
        (None, (10,), (10,), True),
        (None, (10,), (3,), False),
    ],
)
def test_label_shapes(loss, output, label, fits):
    sentence = label_mismatch(loss, output, label)
    assert (sentence is None) == fits
    assert fits or "Received: labels of shape" in sentence
