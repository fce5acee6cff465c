"""The master of a team: decides, owns the central weights, and talks to the coordinator."""
