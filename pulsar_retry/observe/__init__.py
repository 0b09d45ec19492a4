"""Metrics, spans and hooks. Consumers, subscribers and dispatchers all use them."""

from pulsar_retry import _lazy

__getattr__, __all__ = _lazy.attach(__name__)  # the names are in __init__.pyi
