"""Model adapters, which compute a flat gradient from flat weights."""
