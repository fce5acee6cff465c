"""One start of a run, from the coordinator's side."""
