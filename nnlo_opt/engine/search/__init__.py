"""Search process; algorithms by name, from other packages, and custom ones."""
