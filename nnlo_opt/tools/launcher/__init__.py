"""Launcher: starts a run, and restarts it as long as that helps."""
