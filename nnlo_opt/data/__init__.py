"""Training data: data sources, folds, shards and batches."""
