"""One distributed trainer: a master with its workers."""
