"""Looking at a run: its tables as data frames, its figures, what its parameters do."""
