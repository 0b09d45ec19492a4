"""The hand-off: publish a letter, wait for its receipt, then acknowledge the original."""
