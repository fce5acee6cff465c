"""Search side of a run: a pure state machine in a shell on world rank 0."""
