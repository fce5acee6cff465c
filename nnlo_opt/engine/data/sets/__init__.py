"""Data sets that are made, fetched or converted."""
