"""Record of a run: events, the journal that stores them, the ledger that reduces them."""
