"""Launcher: starts a run, then restarts it as long as that helps."""
