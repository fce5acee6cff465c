"""One distributed trainer: a master, its workers, and the loop that serves them."""
