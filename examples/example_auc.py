"""One digit against all others, compared by AUC on folds: nine in ten are of one class, so accuracy says little.

GetData mnist --source bundled
mpirun -np 4 OptimizationDriver --model examples/example_auc.py --block-size 3 --n-fold 3 --epochs 4 \
    --num-iterations 6 --objective val_auc:max --early-stopping "val_auc,>,2"
"""

from nnlo_opt.models.data_files import find_list
from nnlo_opt.space import Integer, Real

DIGIT = 8


def get_model(n_units=16, rate=0.01):
    """The model at one point of the search space, compiled as for `fit`."""
    import keras
    from keras import layers

    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            layers.Flatten(),
            layers.Dense(n_units, activation="relu"),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    metrics = [keras.metrics.AUC(), keras.metrics.AUC(curve="PR", name="pr"), "precision", "recall"]
    model.compile(keras.optimizers.Adam(rate), "binary_crossentropy", metrics=metrics)
    return model


get_model.parameter_range = [
    Integer(4, 64, prior="log-uniform", name="n_units"),
    Real(1e-4, 1e-1, prior="log-uniform", name="rate"),
]


def get_train():
    """The list of training files."""
    return find_list("data/mnist/train_mnist.list", "GetData mnist")


def get_val():
    """The list of validation files; `--n-fold` divides the samples of both."""
    return find_list("data/mnist/test_mnist.list", "GetData mnist")


def get_labels():
    """1 for the digit, else 0, (n, 1)."""
    return "labels", lambda labels: labels[:, [DIGIT]]
