"""A space of small networks for examples/example_mnist.py: an epoch of 4,200 digits takes some tenths of a second."""

from nnlo_opt.space import Categorical, Integer, Real

parameter_range = [
    Integer(2, 10, name="nb_filters"),
    Integer(2, 4, name="pool_size"),
    Integer(2, 4, name="kernel_size"),
    Integer(8, 128, "log-uniform", name="dense"),
    Real(0.0, 0.6, name="dropout"),
    Real(1e-4, 1e-1, "log-uniform", name="train.learning_rate"),
    Categorical([50, 100, 200], name="train.batch"),
]
