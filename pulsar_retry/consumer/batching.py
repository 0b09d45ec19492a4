"""What a batch receive returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import pulsar

from pulsar_retry.errors import ConfigError

#: Messages, bytes and milliseconds of a batch without a policy (pulsar-client's defaults).
DEFAULT_BATCH_LIMITS = (-1, 10 * 1024 * 1024, 100)


class Batch:
    """The messages of one batch receive, on a thread or on an event loop.

    As a context manager it ends the receiving: a message that comes too late ends the batch, and
    with any other error all of its messages are given back.

    Attributes:
        messages: The raw messages so far, in order.
    """

    def __init__(
        self,
        limits: tuple[int, int, int],
        now: Callable[[], float],
        give_back: Callable[[list[Any]], None],
    ) -> None:
        """Start a batch.

        Args:
            limits: The limits of messages, bytes and milliseconds. 0 or less means no limit.
            now: The monotonic clock.
            give_back: Called with messages that were received, and are not in the batch.
        """
        self.messages: list[Any] = []
        self._count, self._size, wait = limits
        self._length = 0
        self._now = now
        self._deadline = now() + wait / 1000 if wait > 0 else None
        self._give_back = give_back
        self._has_too_much = False

    @property
    def is_full(self) -> bool:
        """Whether the batch must be returned now."""
        if 0 < self._count <= len(self.messages) or 0 < self._size <= self._length:
            return True
        return self._has_too_much or (bool(self.messages) and self.left == 0)

    @property
    def left(self) -> float | None:
        """How many seconds the batch may still wait, 0 or more; None: no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - self._now())

    def add(self, raw: Any) -> None:
        """Add a message. If the batch has no room for it, the batch is full."""
        length = raw.length()
        if self.messages and 0 < self._size < self._length + length:
            self._has_too_much = True
            self._give_back([raw])
            return
        self._length += length
        self.messages.append(raw)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        if kind is None or issubclass(kind, pulsar.Timeout):
            return True
        self._give_back(self.messages)
        return False


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
