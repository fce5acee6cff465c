"""Runs in the files of other tools."""
