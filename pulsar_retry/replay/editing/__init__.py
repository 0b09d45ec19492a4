"""Edits of dead letters: what they change, what they do, and how that is shown. Pure."""
