"""Names of other systems: scripts of NNLO, scripts of mpi_learn, files of Keras 1 or 2."""
