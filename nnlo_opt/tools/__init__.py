"""Tools around runs: launcher, doctor, simulation, exporters, each with its commands."""
