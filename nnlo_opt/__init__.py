"""Hyperparameter optimization over MPI blocks."""

__version__ = "0.1.0"
