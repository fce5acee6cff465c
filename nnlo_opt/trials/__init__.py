"""What happened: events, the ledger that reduces them, the journal that keeps them."""
