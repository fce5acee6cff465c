"""Command line: parsers and entry points of the commands."""
