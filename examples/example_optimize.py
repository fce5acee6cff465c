"""A search from a script: by one process, or on ranks by `mpirun -np 5 python examples/example_optimize.py`."""

import nnlo_opt


def objective(parameters):
    """Return the value to be minimised."""
    return (parameters["x"] - 2) ** 2 + (parameters["y"] + 1) ** 2


space = {"x": nnlo_opt.Real(-5, 5), "y": nnlo_opt.Integer(-5, 5)}
result = nnlo_opt.optimize(objective, space, num_iterations=20, block_size=1)
print(f"{result.figure_of_merit:.6f} at {result.best_parameters}")
