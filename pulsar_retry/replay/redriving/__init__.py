"""Bringing dead letters back to work."""
