"""Scripts for NNLO or mpi_learn, run as they are; `run-legacy` alone imports this."""
