"""Move a subscription, with its letters, to another time or message."""
