"""Analysis of a run: data frames and effects of parameters."""
