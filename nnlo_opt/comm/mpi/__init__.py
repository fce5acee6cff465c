"""MPI, by mpi4py, which nothing outside of this package imports. To import a module of it initialises MPI."""

import mpi4py

# Before anybody imports `mpi4py.MPI`: one thread of ours calls MPI, others of the process do not.
mpi4py.rc.thread_level = "funneled"
