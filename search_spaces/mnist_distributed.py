"""Search space of examples/example_mnist.py: the network, and how a block trains it, together.

The update rule is a parameter as any other, and each rule brings its own options: those of one rule are there only
where that rule is chosen. `nnlo-opt space search_spaces/mnist_distributed.py --samples 5` shows it.
"""

from nnlo_opt.space import Categorical, Integer, Ordinal, Real, When

#: update rules that have a sync period, and those that have an optimizer (gem has a learning rate of its own)
WITH_PERIOD = ("downpour", "easgd", "gem")
WITH_OPTIMIZER = ("downpour", "easgd", "allreduce")

parameter_range = [
    # The network.
    Ordinal([8, 16, 32], name="nb_filters"),
    Integer(2, 4, name="pool_size"),
    Integer(2, 5, name="kernel_size"),
    Integer(32, 256, "log-uniform", step=32, name="dense"),
    Real(0.0, 0.6, step=0.1, name="dropout"),
    # The training, whatever the rule.
    Categorical(["downpour", "easgd", "gem", "allreduce"], name="train.mode"),
    Ordinal([25, 50, 100, 200], name="train.batch"),
    Categorical(["constant", "cosine"], name="train.lr_schedule"),
    # What only some rules have.
    Categorical(["sgd", "adam"], name="train.optimizer", condition=When("train.mode", *WITH_OPTIMIZER)),
    Real(1e-2, 1.0, "log-uniform", name="train.learning_rate", likely=0.1, condition=When("train.optimizer", "sgd")),
    Ordinal([1, 2, 4, 8], name="train.sync_every", condition=When("train.mode", *WITH_PERIOD)),
    Categorical(["none", "scale"], name="train.staleness", condition=When("train.mode", "downpour")),
    Real(0.1, 0.9, step=0.1, name="train.elastic_force", condition=When("train.mode", "easgd")),
    Real(1e-3, 1e-1, "log-uniform", name="train.gem_lr", likely=1e-2, condition=When("train.mode", "gem")),
    Real(1.0, 4.0, name="train.gem_kappa", condition=When("train.mode", "gem")),
]

#: samples that a worker may train between two exchanges: an epoch is to have several
MOST_SAMPLES = 400


def feasible(parameters):
    """Whether a point may be tried: a parameter whose condition does not hold is not in `parameters`."""
    return parameters["train.batch"] * parameters.get("train.sync_every", 1) <= MOST_SAMPLES
