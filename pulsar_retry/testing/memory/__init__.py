"""The in-memory broker."""
