"""The application layer: puts one start of a run together; the only place that names adapters."""
