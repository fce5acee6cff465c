"""Checks of the machine on which a run is to start."""
