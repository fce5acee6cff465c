"""Command line: entry points and the table of all commands."""
