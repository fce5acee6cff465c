"""Who talks to whom: topology, messages, and the transports that carry them."""
