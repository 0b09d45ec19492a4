"""The rules that a subscriber follows. Pure: without a client and without threads."""
