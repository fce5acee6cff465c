"""Rank of a run: its place in a team, its roles, its loop."""
