"""Samples from files: HDF5, lists, a cache, streaming, data sets."""
