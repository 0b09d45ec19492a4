"""How many requests may be under way, and when to wait."""
