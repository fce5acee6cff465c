"""Update rules and optimizers: NumPy, flat float32 vectors, in place."""
