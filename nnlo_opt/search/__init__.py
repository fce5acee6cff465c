"""What to try next: search algorithms, pure functions of the history."""
