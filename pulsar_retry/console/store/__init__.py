"""What the console remembers: one SQLite file."""
