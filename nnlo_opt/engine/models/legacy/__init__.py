"""Files of Keras 1 or 2."""
