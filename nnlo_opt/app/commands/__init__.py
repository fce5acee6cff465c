"""The commands of `nnlo-opt` on runs, and the options of the drivers."""
