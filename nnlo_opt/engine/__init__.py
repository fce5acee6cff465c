"""What touches the world: MPI, processes, frameworks, files of samples, users' programs. It imports the core."""
