"""The command line: options, entry points of the commands, what they print."""
