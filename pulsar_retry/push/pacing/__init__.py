"""Pacing: how many requests may be outstanding, and when to wait."""
