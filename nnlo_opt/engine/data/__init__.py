"""Training data, from files to batches."""
