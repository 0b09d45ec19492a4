"""Converts pulsar-client's result codes to the exceptions of its blocking calls."""

from __future__ import annotations

import _pulsar

#: After one of these results a producer never works again and must be replaced.
PRODUCER_GONE = frozenset(
    {
        _pulsar.Result.AlreadyClosed,
        _pulsar.Result.ProducerFenced,
        _pulsar.Result.ProducerNotInitialized,
        _pulsar.Result.TopicTerminated,
    }
)


def error_of(result: _pulsar.Result) -> Exception:
    """Return the exception for *result*."""
    kind = getattr(_pulsar, result.name, _pulsar.PulsarException)
    return kind(f"Pulsar error: {result.name}")
