"""Records retries that the broker cannot tell from others: by nacks and in lanes."""

from __future__ import annotations

from typing import Any

import _pulsar
import attrs

from pulsar_retry.observe.watch import Instrument, RetryKind
from pulsar_retry.runtime.clock import Clock
from pulsar_retry.wire.properties import message_id_text, origin_message_id


@attrs.frozen
class RecordedRetry:
    """A retry without a letter.

    Attributes:
        at: When it was scheduled, in seconds since 1970.
        subscription: The subscription.
        origin: The id of the first publication of its message.
        delay: Seconds until the retry.
    """

    at: float
    subscription: str
    origin: str
    delay: float


class RetryRecorder(Instrument):
    """Records the retries of one consumer."""

    def __init__(self, subscription: str, clock: Clock, retries: list[RecordedRetry]) -> None:
        self._subscription = subscription
        self._now = clock.time
        self._retries = retries

    def retried(self, raw: Any, kind: RetryKind, delay: float, **_: Any) -> None:  # noqa: ARG002
        """Record a retry."""
        origin = origin_of(raw) if isinstance(raw, _pulsar.Message) else message_id_text(raw)
        self._retries.append(RecordedRetry(self._now(), self._subscription, origin, delay))


def origin_of(message: Any) -> str:
    """Return the id of a message's first publication."""
    return origin_message_id(message.properties()) or message_id_text(message.message_id())
