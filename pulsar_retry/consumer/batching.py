"""The limits of a batch receive."""

from __future__ import annotations

from typing import Any

import pulsar

from pulsar_retry.errors import ConfigError

#: Messages, bytes and milliseconds of a batch without a policy (pulsar-client's defaults).
DEFAULT_BATCH_LIMITS = (-1, 10 * 1024 * 1024, 100)


class Batch:
    """The raw messages of a batch receive so far.

    Attributes:
        messages: The messages, in order.
    """

    def __init__(self, limits: tuple[int, int, int], now: float) -> None:
        """Start a batch at the time *now*, in seconds.

        Args:
            limits: The limits of messages, bytes and milliseconds. 0 or less means no limit.
            now: The time of the monotonic clock.
        """
        self.messages: list[Any] = []
        self._count, self._size, wait = limits
        self._length = 0
        self._deadline = now + wait / 1000 if wait > 0 else None

    def is_full(self, now: float) -> bool:
        """Tell whether the batch must be returned now."""
        if 0 < self._count <= len(self.messages) or 0 < self._size <= self._length:
            return True
        return bool(self.messages) and self.left(now) == 0

    def left(self, now: float) -> float | None:
        """Return how many seconds the batch may still wait, 0 or more; None: no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - now)

    def add(self, raw: Any) -> bool:
        """Add a message if the batch has room for it; tell whether it had."""
        length = raw.length()
        if self.messages and 0 < self._size < self._length + length:
            return False
        self._length += length
        self.messages.append(raw)
        return True


def batch_limits(policy: pulsar.ConsumerBatchReceivePolicy | None) -> tuple[int, int, int]:
    """Return the limits of a batch receive policy: messages, bytes, milliseconds.

    Raises:
        ConfigError: *policy* is not a `pulsar.ConsumerBatchReceivePolicy`.
    """
    if policy is None:
        return DEFAULT_BATCH_LIMITS
    if not isinstance(policy, pulsar.ConsumerBatchReceivePolicy):
        raise ConfigError.bad("batch_receive_policy", policy, "a pulsar.ConsumerBatchReceivePolicy")
    raw = policy.policy()
    return (raw.getMaxNumMessages(), raw.getMaxNumBytes(), raw.getTimeoutMs())
