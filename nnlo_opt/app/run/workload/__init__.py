"""Workload of a run: models, data, inspection."""
