"""A multilayer perceptron that reads handwritten digits: small, quick, with a categorical parameter.

GetData mnist --source bundled
mpirun -np 3 TrainingDriver --model examples/example_mlp.py --epochs 5
mpirun -np 5 OptimizationDriver --model examples/example_mlp.py --block-size 2 --epochs 3 --num-iterations 20
"""

from nnlo_opt.models.data_files import find_list
from nnlo_opt.space import Categorical, Integer, Real


def get_name():
    """The name of outputs."""
    return "example_mlp"


def get_model(n_layers=2, n_units=64, activation="relu", dropout=0.2):
    """The model at one point of the search space."""
    import keras
    from keras import layers

    model = keras.Sequential([keras.Input((28, 28, 1)), layers.Flatten()])
    for _ in range(n_layers):
        model.add(layers.Dense(n_units, activation=activation))
        model.add(layers.Dropout(dropout))
    model.add(layers.Dense(10, activation="softmax"))
    return model


get_model.parameter_range = [
    Integer(1, 4, name="n_layers"),
    Integer(16, 256, prior="log-uniform", name="n_units"),
    Categorical(["relu", "tanh", "elu"], name="activation"),
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
