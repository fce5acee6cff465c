"""A convolutional network that reads handwritten digits.

GetData mnist --source bundled
mpirun -np 7 OptimizationDriver --model examples/example_mnist.py --block-size 3 --epochs 3 --num-iterations 10 \
    --search-space search_spaces/mnist_distributed.py
"""

from nnlo_opt.models.data_files import find_list
from nnlo_opt.space import Integer, Real


def get_name():
    """The name of outputs."""
    return "example_mnist"


def get_model(nb_filters=32, pool_size=2, kernel_size=3, dense=128, dropout=0.5):
    """The model at one point of the search space."""
    # Imported here, so that reading the search space does not cost an import of TensorFlow.
    import keras
    from keras import layers

    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Conv2D(nb_filters, kernel_size, activation="relu"),
            layers.Conv2D(nb_filters, kernel_size, activation="relu"),
            layers.MaxPooling2D(pool_size),
            layers.Dropout(dropout / 2),
            layers.Flatten(),
            layers.Dense(dense, activation="relu"),
            layers.Dropout(dropout),
            layers.Dense(10, activation="softmax"),
        ]
    )


# `train.batch`, `train.learning_rate` and other training options can be searched too: see search_spaces/mnist.py.
get_model.parameter_range = [
    Integer(8, 32, name="nb_filters"),
    Integer(2, 4, name="pool_size"),
    Integer(2, 5, name="kernel_size"),
    Integer(50, 200, name="dense"),
    Real(0.0, 0.7, name="dropout"),
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
