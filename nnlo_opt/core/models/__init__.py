"""What a model must be able to do, and the layout of its weights."""
