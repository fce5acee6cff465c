"""The workers of a team: each computes gradients on its shard."""
