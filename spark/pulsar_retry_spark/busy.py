"""Wait for a name that one client at a time can have: a producer's, or a subscription's."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

import pulsar

from pulsar_retry.policy.backoff import Exponential

_T = TypeVar("_T")


def when_free(
    take: Callable[[], _T],
    busy: type[pulsar.PulsarException],
    *,
    patience: float,
    backoff: Exponential,
) -> _T:
    """Return what *take* returns; call it again while it raises *busy*.

    Args:
        take: Takes the name.
        busy: The error that *take* raises while another process has the name.
        patience: Seconds after which *take* is not called again.
        backoff: How long to wait before each further call.

    Raises:
        pulsar.PulsarException: *busy*, after *patience*; any other error of *take*, at once.
    """
    give_up_at = time.monotonic() + patience
    tries = 0
    while True:
        try:
            return take()
        except busy:
            if time.monotonic() > give_up_at:
                raise
        tries += 1
        time.sleep(backoff.delay(tries))
