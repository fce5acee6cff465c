"""Objectives: trials that run a user's function on the ranks of a block."""
