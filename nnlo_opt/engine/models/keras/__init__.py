"""Keras, on each of its backends."""
