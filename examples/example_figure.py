"""Custom figures of merit, computed from the results of a fold.

GetData mnist --source bundled
mpirun -np 5 OptimizationDriver --model examples/example_mlp.py --block-size 2 --epochs 3 --num-iterations 10 \
    --figure-of-merit examples/example_figure.py:small_and_good
"""

import math


def small_and_good(fold):
    """Validation loss, plus a tenth for each factor of ten in the number of weights; minimised."""
    return fold["metrics"]["val_loss"] + 0.1 * math.log10(fold["n_weights"])


def anytime(fold):
    """Mean validation accuracy over the epochs, which rewards fast learners; for `--direction max`."""
    return sum(metrics["val_acc"] for metrics in fold["epochs"]) / len(fold["epochs"])
