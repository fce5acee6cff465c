"""Model adapters: they compute a flat gradient from flat weights."""
