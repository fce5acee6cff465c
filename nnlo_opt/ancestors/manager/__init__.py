"""Managers of a training, as in mpi_learn."""
