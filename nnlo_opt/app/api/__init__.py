"""The Python interface: `optimize`, `Study`, `load_run`."""
