"""How gradients and weights travel between the ranks of a team."""
