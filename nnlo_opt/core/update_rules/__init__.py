"""Update rules with their optimizers: NumPy, flat float32 vectors, in place."""
