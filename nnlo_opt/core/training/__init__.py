"""Options, history and stopping rules of a single training."""
