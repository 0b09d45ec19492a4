"""What can be watched: metrics, spans and hooks. Below every shell, so that each has the same."""
