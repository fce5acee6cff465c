"""Composition root: the only place that names adapters, parses options and prints errors."""
