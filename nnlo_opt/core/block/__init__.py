"""A distributed trainer: a master and its workers."""
