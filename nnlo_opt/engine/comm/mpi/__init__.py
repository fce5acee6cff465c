"""MPI by mpi4py, which only this package imports. Importing any of its modules initialises MPI."""

import atexit
import sys

import mpi4py

from nnlo_opt.engine.runtime.process import only_here

# This must come before the first import of `mpi4py.MPI`. Only one thread of a process calls MPI at a time; frameworks
# call `allreduce` from threads of their own.
mpi4py.rc.thread_level = "serialized"
if mpi4py.rc.finalize is None and "mpi4py.MPI" not in sys.modules:
    # mpi4py would also finalize MPI at the end of forked processes, which would hang.
    mpi4py.rc.finalize = False
    from mpi4py import MPI

    def finalize() -> None:
        """Leave MPI, unless this rank has left it."""
        if not MPI.Is_finalized():
            MPI.Finalize()

    atexit.register(only_here(finalize))
