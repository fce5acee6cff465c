"""One start of a run, put together from core and engine."""
