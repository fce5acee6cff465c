"""Exports runs to the files of other tools."""
