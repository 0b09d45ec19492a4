"""Java, and processes that run it."""
