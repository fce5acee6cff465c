"""Exchange of gradients and weights between the ranks of a team."""
