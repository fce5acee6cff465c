"""Samples as a block sees them: sources, folds, batches, their order and weights."""
