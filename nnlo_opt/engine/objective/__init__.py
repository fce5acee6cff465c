"""Objectives: trials that run a user's function, script or command on the ranks of a block."""
