"""Command line, which puts the parts together: entry points of all commands, and the table of them."""
