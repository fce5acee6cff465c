"""Ways of gradients and weights between the ranks of a team: messages, shared memory, allreduce."""
