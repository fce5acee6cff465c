"""What every other module may use: errors, clocks, files, records."""
