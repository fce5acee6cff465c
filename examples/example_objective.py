"""No neural network: any MPI program can be searched. Here a curve is fitted, its points spread over the block's ranks.

mpirun -np 5 OptimizationDriver --model examples/example_objective.py --block-size 2 --num-iterations 20

Every rank of a block calls `objective` with the same parameters and the block's communicator. `report` must be called
by every rank too; it says whether to go on. What block rank 0 returns is the figure of merit, which is minimised.
"""

import numpy as np

from nnlo_opt.space import Integer, Real

N_POINTS = 4_000
N_EPOCHS = 10
STEPS_PER_EPOCH = 20


def objective(parameters, comm, report):
    """Mean squared error, on fresh points, of a curve made of random cosines: lower is better."""
    n_features, step_size = parameters["n_features"], parameters["step_size"]
    # Random features (Rahimi and Recht, "Random Features for Large-Scale Kernel Machines", 2007), equal on all ranks.
    rng = np.random.default_rng(1)
    frequencies = rng.normal(scale=1 / parameters["width"], size=n_features)
    phases = rng.uniform(0, 2 * np.pi, size=n_features)

    def features(x):
        return np.sqrt(2 / n_features) * np.cos(np.outer(x, frequencies) + phases)

    x, y = noisy_points(comm.rank, N_POINTS // comm.size)
    x_validation, y_validation = noisy_points(comm.size + comm.rank, N_POINTS // 10)
    inputs, inputs_validation = features(x), features(x_validation)

    weights = np.zeros(n_features)
    error = np.inf
    for epoch in range(1, N_EPOCHS + 1):
        for _ in range(STEPS_PER_EPOCH):
            gradient = inputs.T @ (inputs @ weights - y) / len(y)
            weights -= step_size * average(comm, gradient)
        error = average(comm, np.square(inputs_validation @ weights - y_validation).mean(keepdims=True)).item()
        if not report(epoch, error):
            break
    return error


objective.parameter_range = [
    Integer(4, 200, prior="log-uniform", name="n_features"),
    Real(0.05, 5.0, prior="log-uniform", name="width"),
    Real(0.05, 0.9, name="step_size"),
]


def noisy_points(seed, n):
    """Points (n,) and what was measured there (n,)."""
    rng = np.random.default_rng(seed + 100)
    x = rng.uniform(-3, 3, size=n)
    return x, np.sin(3 * x) / (1 + x**2) + rng.normal(scale=0.05, size=n)


def average(comm, array):
    """The mean of `array` over the ranks of the block."""
    total = np.empty_like(array)
    comm.Allreduce(array, total)
    return total / comm.size
