"""The real coordinator with virtual blocks: no MPI, no training, a clock that jumps."""
