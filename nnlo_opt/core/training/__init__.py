"""Rules of one training."""
