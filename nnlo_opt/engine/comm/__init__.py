"""How ranks reach each other: MPI, and the shared memory of a node."""
