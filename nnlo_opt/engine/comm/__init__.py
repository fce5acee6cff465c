"""Communication between ranks: MPI, and shared memory within a node."""
