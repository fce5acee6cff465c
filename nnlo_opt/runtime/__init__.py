"""Process of one rank."""
