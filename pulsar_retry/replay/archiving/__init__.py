"""Dead letters are archived, discarded and restored."""
