"""The life of one training: stopping rules, history, checkpoints."""
