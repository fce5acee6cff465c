"""Reports on the state of a run: progress lines, tables, results.csv, summary.json."""
