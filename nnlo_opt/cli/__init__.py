"""Command line of the package: parsers, entry points, printed pages."""
