"""Starts a run, and starts it again for as long as that helps."""
