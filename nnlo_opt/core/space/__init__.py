"""Search spaces: parameters, conditions, constraints, and the numbering of finite spaces."""
