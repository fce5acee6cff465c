"""Start of a run on its coordinator."""
