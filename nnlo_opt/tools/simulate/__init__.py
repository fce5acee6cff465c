"""Simulation of searches: the real coordinator with virtual blocks, without MPI or training."""
