"""Communication between ranks: topology, messages, transports."""
