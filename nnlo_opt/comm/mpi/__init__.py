"""MPI by mpi4py, which only this package imports. The import of any of its modules initialises MPI."""

import mpi4py

# This must come before the first import of `mpi4py.MPI`. Only one thread of a process calls MPI at a time; frameworks
# call `allreduce` from threads of their own.
mpi4py.rc.thread_level = "serialized"
