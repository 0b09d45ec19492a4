"""What an inbox has: its sources, the messages that wait, and the limits of a batch receive."""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, TypeVar

import attrs
import pulsar

from pulsar_retry.errors import ConfigError

T = TypeVar("T")

#: Messages, bytes and milliseconds of a batch without a policy (pulsar-client's defaults).
DEFAULT_BATCH_LIMITS = (-1, 10 * 1024 * 1024, 100)


@attrs.define(eq=False)
class InboxSource:
    """One of pulsar-client's consumers.

    Attributes:
        raw: The consumer.
        letters: Whether it reads the retry topic.
        armed: Whether an asynchronous receive waits in it, or the received message waits here.
        is_asked: Whether the asynchronous receive has no answer yet.
        is_held: Whether it is not read, and counts as armed.
        keep: Seconds for which an overlooked message is kept; 0 if the order does not matter.
        overlooked: Raw messages that its queue had although a receive waits there, and until when
            each is kept, in case an older one comes.
        had_at: When it last had a message in its queue, by the clock.
        asked_at: It is not asked before that time, unless it was armed since.
    """

    raw: Any
    letters: bool
    keep: float = 0.0
    had_at: float = float("-inf")
    asked_at: float = float("-inf")
    armed: bool = False
    is_asked: bool = False
    is_held: bool = False
    overlooked: deque[tuple[Any, float]] = attrs.Factory(deque)


@attrs.define(eq=False)  # not frozen: making it is on the path of each letter
class Item:
    """A message that waits here, or was taken.

    Attributes:
        source: The source that it came from.
        message: The raw message.
        armed: Whether *source* stays armed until the message is taken.
    """

    source: InboxSource
    message: Any
    armed: bool


class Batch(Generic[T]):
    """The messages of a batch receive so far.

    Attributes:
        items: The messages, in order.
    """

    def __init__(self, limits: tuple[int, int, int], now: float) -> None:
        """Start a batch at the time *now*, in seconds.

        Args:
            limits: The limits of messages, bytes and milliseconds. 0 or less means no limit.
            now: The time of the monotonic clock.
        """
        self.items: list[T] = []
        self._count, self._size, wait = limits
        self._length = 0
        self._deadline = now + wait / 1000 if wait > 0 else None

    def is_full(self, now: float) -> bool:
        """Tell whether the batch must be returned now."""
        if 0 < self._count <= len(self.items) or 0 < self._size <= self._length:
            return True
        return bool(self.items) and self.left(now) == 0

    def left(self, now: float) -> float | None:
        """Return how many seconds the batch may still wait, 0 or more; None: no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - now)

    def add(self, item: T, length: int) -> bool:
        """Add a message of *length* bytes if the batch has room for it; tell whether it had."""
        if self.items and 0 < self._size < self._length + length:
            return False
        self._length += length
        self.items.append(item)
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
