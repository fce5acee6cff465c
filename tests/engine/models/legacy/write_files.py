"""Writes the files of this folder with a former Keras; see README.md. Not run by the tests.

python write_files.py 1.2.2|2.1.6|2.15
"""

import sys
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent
VERSION = sys.argv[1] if len(sys.argv) > 1 else ""
RANDOM = np.random.RandomState(0)


def stacked(sequential, *layers):
    model = sequential()
    for layer in layers:
        model.add(layer)
    return model


def write(name, model, features):
    """NAME.json, NAME.h5 with random weights, and NAME.npz with features and what the model makes of them."""
    weights = []
    for weight in model.get_weights():
        is_positive = weight.size and weight.min() >= 0 and weight.max() > 0
        weights.append(np.asarray(RANDOM.rand(*weight.shape) * 0.5 + (0.1 if is_positive else -0.25), "f"))
    model.set_weights(weights)
    outputs = model.predict(features if len(features) > 1 else features[0])
    outputs = outputs if isinstance(outputs, list) else [outputs]
    (FOLDER / f"{name}.json").write_text(model.to_json())
    model.save_weights(str(FOLDER / f"{name}.h5"), overwrite=True)
    arrays = {f"x{n}": x for n, x in enumerate(features)} | {f"y{n}": y for n, y in enumerate(outputs)}
    np.savez_compressed(FOLDER / f"{name}.npz", **arrays)


def keras_1():
    from keras import layers as of
    from keras.layers.advanced_activations import LeakyReLU, PReLU
    from keras.models import Sequential
    from keras.regularizers import l2

    order = {"dim_ordering": "th"}
    images = [
        of.Convolution2D(3, 3, 3, W_regularizer=l2(0.01), init="he_normal", input_shape=(1, 8, 8), **order),
        PReLU(),
        # Their files do not say the order of the images.
        of.ZeroPadding2D((1, 1), **order),
        of.AtrousConvolution2D(2, 2, 2, atrous_rate=(2, 2), border_mode="same", **order),
        of.BatchNormalization(axis=1),
        LeakyReLU(0.2),
        of.MaxPooling2D((2, 2), **order),
        of.Dropout(0.2),
        of.Flatten(),
        of.Dense(3, activation="softmax"),
    ]
    write("keras_1_images", stacked(Sequential, *images), [RANDOM.rand(4, 1, 8, 8).astype("f")])
    sequences = [
        of.Embedding(9, 3, input_length=6, mask_zero=True),
        of.LSTM(4, return_sequences=True, dropout_W=0.2),
        of.Bidirectional(of.GRU(3, return_sequences=True), merge_mode="sum"),
        of.TimeDistributed(of.Dense(4, activation="hard_sigmoid")),
        of.SimpleRNN(2),
    ]
    write("keras_1_sequences", stacked(Sequential, *sequences), [RANDOM.randint(1, 9, (4, 6)).astype("f")])
    conv = [of.Convolution1D(3, 2, input_shape=(6, 2)), of.MaxPooling1D(2), of.Flatten(), of.Dense(4)]
    branches = [stacked(Sequential, *conv), stacked(Sequential, of.Dense(4, input_dim=3, activation="tanh"))]
    merged = stacked(Sequential, of.Merge(branches, mode="mul"), of.Dense(2))
    write("keras_1_branches", merged, [RANDOM.rand(4, 6, 2).astype("f"), RANDOM.rand(4, 3).astype("f")])


def keras_2_1():
    from keras import layers as of
    from keras.models import Model, Sequential

    source, target = of.Input((5, 3)), of.Input((4, 3))
    shared = of.Dense(3, activation="relu")
    _, state, carry = of.LSTM(2, return_state=True)(shared(source))
    decoded = of.LSTM(2, return_sequences=True)(shared(target), initial_state=[state, carry])
    inner = of.Input((2,))
    parts = Model(inner, [of.Dense(2)(inner), of.Dense(3)(of.BatchNormalization()(inner))])
    part, other = parts(state)
    again, _ = parts(carry)
    head = stacked(Sequential, of.Dense(4, input_dim=5), of.ELU(0.5))
    first = head(of.concatenate([of.add([part, again]), other]))
    model = Model([source, target], [first, of.TimeDistributed(of.Dense(2))(decoded)])
    write("keras_2_1_graph", model, [RANDOM.rand(4, 5, 3).astype("f"), RANDOM.rand(4, 4, 3).astype("f")])


def keras_2_15():
    from tensorflow.keras import Model
    from tensorflow.keras import layers as of

    x = of.Input((6, 4))
    y = of.SeparableConv1D(4, 2, padding="same", activation=of.LeakyReLU(0.3))(x)
    y = of.LayerNormalization()(of.Add()([x, of.MultiHeadAttention(2, 3)(y, x)]))
    y = of.Bidirectional(of.GRU(2, return_sequences=True))(y)
    y = of.BatchNormalization(trainable=False)(of.Dense(4, activation="swish")(y))
    y = of.LSTM(3, recurrent_activation="hard_sigmoid")(y)
    write("keras_2_15_attention", Model(x, of.Dense(2)(y)), [RANDOM.rand(4, 6, 4).astype("f")])


if __name__ == "__main__":
    {"1.2.2": keras_1, "2.1.6": keras_2_1, "2.15": keras_2_15}[VERSION]()
