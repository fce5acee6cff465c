"""Lines, tables and files that report the state of a run: progress, results.csv, summary.json."""
