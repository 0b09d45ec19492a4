"""pulsar-client's result codes as the exceptions that its blocking calls raise."""

from __future__ import annotations

import _pulsar

#: After one of these a producer never works again and a new one has to be made.
PRODUCER_GONE = frozenset(
    {
        _pulsar.Result.AlreadyClosed,
        _pulsar.Result.ProducerFenced,
        _pulsar.Result.ProducerNotInitialized,
        _pulsar.Result.TopicTerminated,
    }
)


def error_of(result: _pulsar.Result) -> Exception:
    """Return the exception that stands for *result*."""
    kind = getattr(_pulsar, result.name, _pulsar.PulsarException)
    return kind(f"Pulsar error: {result.name}")  # type: ignore[no-any-return]
