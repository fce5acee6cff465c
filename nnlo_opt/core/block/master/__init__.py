"""The master of a team: it decides, owns the central weights, speaks to the coordinator."""
