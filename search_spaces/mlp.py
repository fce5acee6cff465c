"""Search space of examples/example_mlp.py: its model's arguments, and the learning rate."""

from nnlo_opt.space import Categorical, Integer, Real

parameter_range = [
    Integer(1, 4, name="n_layers"),
    Integer(16, 256, "log-uniform", name="n_units"),
    Categorical(["relu", "tanh", "elu"], name="activation"),
    Real(0.0, 0.5, name="dropout"),
    Real(1e-4, 1e-1, "log-uniform", name="train.learning_rate"),
]
