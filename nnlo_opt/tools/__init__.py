"""Tools around runs: launcher, doctor, simulation and exporters, with their commands."""
