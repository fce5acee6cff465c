"""Record of a run: events, the ledger that reduces them, the journal that keeps them."""
