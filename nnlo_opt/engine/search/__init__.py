"""Search algorithms in a process of their own, by name, of other packages and of users."""
