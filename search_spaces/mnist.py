"""Search space of examples/example_mnist.py: its model's arguments, and two training options."""

from nnlo_opt.space import Categorical, Integer, Real

parameter_range = [
    Integer(8, 32, name="nb_filters"),
    Integer(2, 4, name="pool_size"),
    Integer(2, 5, name="kernel_size"),
    Integer(32, 256, "log-uniform", name="dense"),
    Real(0.0, 0.6, name="dropout"),
    Real(1e-4, 1e-2, "log-uniform", name="train.learning_rate"),
    Categorical([50, 100, 200], name="train.batch"),
]
