"""Jitter spreads retries, so that messages that failed together do not return together. Pure.

Different messages have different keys, so no random numbers are needed: the same message and
attempt always have the same delay.
"""

from __future__ import annotations

import hashlib
from typing import Literal

from pulsar_retry.errors import ConfigError
from pulsar_retry.policy.backoff import Backoff

#: How delays are spread. ``"none"``; ``"upward"``: evenly from the backoff's delay to 1.2 times
#: this delay; ``"full"``: evenly from 0 to the backoff's delay.
Jitter = Literal["none", "upward", "full"]
NONE: Jitter = "none"
UPWARD: Jitter = "upward"
FULL: Jitter = "full"

#: How much longer than the backoff's delay one with upward jitter may be, as a part of it.
_UPWARD = 0.2


def checked_jitter(value: Jitter) -> Jitter:
    """Return *value*.

    Raises:
        ConfigError: it is no jitter.
    """
    if value not in {NONE, UPWARD, FULL}:
        raise ConfigError.bad("jitter", value, f'"{NONE}", "{UPWARD}" or "{FULL}"')
    return value


def span(jitter: Jitter, backoff: Backoff, attempt: int) -> tuple[float, float]:
    """Return the shortest and the longest delay after failure number *attempt*, in seconds."""
    delay = backoff.delay(attempt)
    if jitter == UPWARD:
        return delay, delay * (1 + _UPWARD)
    return (0.0 if jitter == FULL else delay), delay


def spread(jitter: Jitter, backoff: Backoff, attempt: int, key: str) -> float:
    """Return the delay of the message *key* after failure number *attempt*, in seconds."""
    delay = backoff.delay(attempt)
    if jitter == NONE:
        return delay
    fraction = _fraction(attempt, key)
    return delay * (1 + _UPWARD * fraction if jitter == UPWARD else fraction)


def _fraction(attempt: int, key: str) -> float:
    """Return a pseudo-random number, at least 0 and below 1."""
    text = f"{attempt} {key}".encode(errors="surrogatepass")
    digest = hashlib.blake2b(text, digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) / (1 << 53)
