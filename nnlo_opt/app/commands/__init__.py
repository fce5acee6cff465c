"""Commands of `nnlo-opt` on runs, and the drivers' command lines."""
