"""Training managers, as in mpi_learn."""
