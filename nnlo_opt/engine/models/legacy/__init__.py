"""Reading of files from Keras 1 or 2."""
