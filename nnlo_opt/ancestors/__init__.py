"""Programs of NNLO and mpi_learn, run as they are: their scripts, managers and commands."""
