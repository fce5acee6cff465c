"""Compatibility with NNLO and mpi_learn: their scripts, managers and commands."""
