"""Model of chaos.py: a perceptron on MNIST, and a figure of merit that writes down every fold trained to its end."""

import json
import os
import time

from nnlo_opt.space import Integer, Real


def get_model(n_units=16, dropout=0.1):
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Flatten(),
            layers.Dense(n_units, activation="relu"),
            layers.Dropout(dropout),
            layers.Dense(10, activation="softmax"),
        ]
    )


get_model.parameter_range = [
    Integer(8, 64, name="n_units"),
    Real(0.0, 0.5, name="dropout"),
    Real(1e-4, 1e-2, "log-uniform", name="train.learning_rate"),
]


def figure(fold):
    """The validation loss: unlike the accuracy it tells of the last bit of the weights."""
    value = fold["metrics"]["val_loss"]
    ended_unix_s = time.time()
    values = {"point": fold["point"], "value": value, "ended_unix_s": ended_unix_s}
    line = json.dumps({**values, "began_unix_s": ended_unix_s - fold["train_s"]}, default=float) + "\n"
    fd = os.open("evaluations.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.write(fd, line.encode())
    os.close(fd)
    return value
