"""Metrics, spans and hooks. Consumers, subscribers and dispatchers all use them."""
