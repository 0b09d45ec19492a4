"""Who may use the console, and as what."""
