"""A ledger that counts every message, and the programs and workers that write it."""
