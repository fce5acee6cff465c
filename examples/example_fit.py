"""The training of `fit_script.py` on a block: its model in one function, what `fit` gets in two.

mpirun -np 1 TrainingDriver --model examples/example_fit.py --mode allreduce --batch 50 --epochs 5 --no-shuffle
mpirun -np 3 TrainingDriver --model examples/example_fit.py --mode allreduce --batch 17 --epochs 5 --no-shuffle
"""

from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def get_model():
    """Return the compiled model: its optimizer and loss are used."""
    import keras

    first = keras.layers.Dense(64, activation="relu", kernel_initializer=keras.initializers.GlorotUniform(seed=1))
    last = keras.layers.Dense(10, activation="softmax", kernel_initializer=keras.initializers.GlorotUniform(seed=2))
    model = keras.Sequential([keras.Input((64,)), first, last])
    model.compile(keras.optimizers.Adam(0.003), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def get_train():
    """Return what `fit` gets."""
    return split()[0]


def get_val():
    """Return what `fit` gets as `validation_data`."""
    return split()[1]


def split():
    """Return the samples for training and for validation, the same on every rank."""
    x, y = load_digits(return_X_y=True)
    x_train, x_val, y_train, y_val = train_test_split(x / 16, y, test_size=297, random_state=0)
    return (x_train, y_train), (x_val, y_val)
