"""Update rules and optimizers, in NumPy on flat float32 vectors, in place."""
