"""Plain modules of torch."""
