"""What the product is: trials, searches, coordinator and blocks. It imports nothing of ours but itself."""
