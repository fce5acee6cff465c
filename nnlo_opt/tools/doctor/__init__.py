"""Checks of the machine before a run."""
