"""What it is trained on: data sources, folds, shards and batches."""
