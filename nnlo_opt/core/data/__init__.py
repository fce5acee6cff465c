"""Samples: sources, folds, batches, their order and weights."""
