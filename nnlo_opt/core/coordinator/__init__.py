"""Search side of a run: a pure state machine and its shell on world rank 0."""
