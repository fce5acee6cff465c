"""Reports on the state of a run."""
