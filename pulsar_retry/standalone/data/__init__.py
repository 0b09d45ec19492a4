"""The data folder, and the journal in it."""
