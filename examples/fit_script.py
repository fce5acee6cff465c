"""A training by `compile` and `fit`, on one process: `python examples/fit_script.py`.

`example_fit.py` has the same model and samples in two functions, for a block of ranks.
"""

import keras
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

x, y = load_digits(return_X_y=True)
x_train, x_val, y_train, y_val = train_test_split(x.astype(np.float32) / 16, y, test_size=297, random_state=0)

first = keras.layers.Dense(64, activation="relu", kernel_initializer=keras.initializers.GlorotUniform(seed=1))
last = keras.layers.Dense(10, activation="softmax", kernel_initializer=keras.initializers.GlorotUniform(seed=2))
model = keras.Sequential([keras.Input((64,)), first, last])
model.compile(keras.optimizers.Adam(0.003), "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=50, epochs=5, shuffle=False, validation_data=(x_val, y_val), verbose=2)
