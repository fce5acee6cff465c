"""The search side: a pure state machine and its shell on world rank 0."""
