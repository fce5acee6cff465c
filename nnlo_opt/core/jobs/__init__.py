"""Jobs that share a search through files: logs, terms, liveness, succession, fencing."""
