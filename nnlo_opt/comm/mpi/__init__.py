"""MPI by mpi4py, which only this package imports. The import of any of its modules initialises MPI."""

import mpi4py

# This must come before the first import of `mpi4py.MPI`: only one thread of the process calls MPI.
mpi4py.rc.thread_level = "funneled"
