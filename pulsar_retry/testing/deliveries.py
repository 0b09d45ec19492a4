"""The record of a delivery, for tests."""

from __future__ import annotations

from typing import Any

import attrs


@attrs.frozen
class Delivered:
    """A message that the broker has delivered to a consumer.

    Attributes:
        at: When, in seconds since 1970 by the broker's clock.
        message: The `pulsar.Message`.
        redelivery_count: How often it had been redelivered before.
        consumer: The consumer's name.
    """

    at: float
    message: Any
    redelivery_count: int
    consumer: str
