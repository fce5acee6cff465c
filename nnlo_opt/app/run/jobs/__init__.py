"""A start that shares its run with other jobs (`--join`); see docs/architecture/joining.md."""
