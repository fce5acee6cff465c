"""Data sets to generate, download or convert."""
