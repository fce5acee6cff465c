"""Loading of users' Python files: modules and search spaces."""
