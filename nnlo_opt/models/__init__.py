"""What is trained: model adapters from flat weights and a batch to a loss and a flat gradient."""
