"""Runs unchanged scripts for NNLO or mpi_learn; only `run-legacy` imports this."""

import os

#: models of NNLO
_NAMES = ("example", "mnist", "cifar10", "topclass", "mnist_torch", "topclass_torch")
MODELS = {name: f"nnlo_opt.models.builtin.{name}" for name in _NAMES}
_BACKENDS = ("tensorflow", "jax", "torch")


def settle_backend() -> None:
    """Select TensorFlow if a script requests a backend that Keras has dropped."""
    if os.environ.get("KERAS_BACKEND", "tensorflow") not in _BACKENDS:
        os.environ["KERAS_BACKEND"] = "tensorflow"
