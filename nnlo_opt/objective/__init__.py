"""Trials that are a program of the user's, on the ranks of a block."""
