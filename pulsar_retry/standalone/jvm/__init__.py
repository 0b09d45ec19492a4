"""Java, and the processes that run it."""
