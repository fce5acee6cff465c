"""A recurrent network that reads handwritten digits as sequences: 28 rows of 28 pixels, from top to bottom.

GetData mnist --source bundled
mpirun -np 3 TrainingDriver --model examples/example_lstm.py --epochs 10
"""

from nnlo_opt.models.data_files import find_list
from nnlo_opt.space import Integer, Real


def get_name():
    """The name of outputs."""
    return "example_lstm"


def get_model(n_layers=1, n_units=128, dropout=0.2):
    """The model at one point of the search space: classes from the outputs of the last LSTM, averaged over the rows."""
    import keras
    from keras import layers

    model = keras.Sequential([keras.Input((28, 28, 1)), layers.Reshape((28, 28))])
    for _ in range(n_layers):
        model.add(layers.LSTM(n_units, return_sequences=True))
    model.add(layers.GlobalAveragePooling1D())
    model.add(layers.Dropout(dropout))
    model.add(layers.Dense(10, activation="softmax"))
    return model


get_model.parameter_range = [
    Integer(1, 2, name="n_layers"),
    Integer(16, 256, prior="log-uniform", name="n_units"),
    Real(0.0, 0.6, name="dropout"),
]


def get_train():
    """The list of training files."""
    return find_list("data/mnist/train_mnist.list", "GetData mnist")


def get_val():
    """The list of validation files."""
    return find_list("data/mnist/test_mnist.list", "GetData mnist")


def get_features():
    """Images (n, 28, 28, 1), float32 in 0..1."""
    return "features"


def get_labels():
    """One-hot classes (n, 10)."""
    return "labels"
