"""Foundations for all other modules: errors, clocks, files, records."""
