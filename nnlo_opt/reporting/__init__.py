"""What people look at: lines, tables, results.csv, summary.json."""
