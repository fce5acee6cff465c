"""Loading of users' Python files: modules, and the search spaces in them."""
