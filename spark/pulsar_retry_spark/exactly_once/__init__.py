"""Effectively once: the same rows under the same numbers, whenever a job is run."""
