"""Scripts for NNLO or mpi_learn, run as they are; `run-legacy` alone imports this."""

import os

#: models of NNLO, and their modules
_NAMES = ("example", "mnist", "cifar10", "topclass", "mnist_torch", "topclass_torch")
MODELS = {name: f"nnlo_opt.models.builtin.{name}" for name in _NAMES}
_BACKENDS = ("tensorflow", "jax", "torch")


def settle_backend() -> None:
    """Let Keras compute with TensorFlow if a script asks for a library that Keras has given up."""
    if os.environ.get("KERAS_BACKEND", "tensorflow") not in _BACKENDS:
        os.environ["KERAS_BACKEND"] = "tensorflow"
