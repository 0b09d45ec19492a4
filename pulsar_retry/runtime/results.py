"""Converts pulsar-client's result codes to the exceptions of its blocking calls."""

from __future__ import annotations

import logging

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


def level_of(error: BaseException) -> int:
    """Return the level of the log for *error*, or its cause: ERROR if it stays until someone acts.

    A terminated topic accepts no message any more, however often publishing is repeated.
    """
    both = (error, error.__cause__)
    is_final = any(isinstance(each, _pulsar.TopicTerminated) for each in both)
    return logging.ERROR if is_final else logging.WARNING
