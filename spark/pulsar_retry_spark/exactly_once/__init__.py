"""Effectively once: each run of a job sends the same rows with the same numbers."""
