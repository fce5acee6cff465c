"""A rank of a run: its place in a team, its roles, its main loop."""
