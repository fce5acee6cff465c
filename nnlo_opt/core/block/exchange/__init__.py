"""Ways of a gradient between the ranks of a team."""
