"""Model adapters, which compute a loss and a flat gradient from flat weights and a batch."""
