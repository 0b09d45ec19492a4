"""Flow control: how much may be in hand before nothing more is received. Pure."""

from __future__ import annotations

from typing import Any

import attrs

from pulsar_retry.policy.checks import whole

#: At this load nothing more is received (python-pubsub's numbers) …
PAUSE = 1.0
#: … until it is below this one.
RESUME = 0.8


def _max_messages(value: Any) -> int:
    return whole("max_messages", value)


def _max_bytes(value: Any) -> int:
    return whole("max_bytes", value)


@attrs.frozen
class FlowControl:
    """How much a subscriber holds at most, from receipt to the end of the settlement.

    A message that is handled, waits for a worker, is parked or has its letter on the way counts.
    Beside it pulsar-client's own queue holds up to ``prefetch`` messages. The byte limit may be
    exceeded by one message, the limit of messages never.

    Attributes:
        max_messages: Messages.
        max_bytes: Bytes of payload.
    """

    max_messages: int = attrs.field(default=1000, converter=_max_messages)
    max_bytes: int = attrs.field(default=100 << 20, converter=_max_bytes)

    def load(self, messages: int, size: int) -> float:
        """Return how much of the limits is used: the larger of the two parts, 1.0 at a limit."""
        return max(messages / self.max_messages, size / self.max_bytes)


class FlowGate:
    """Lets messages in until the load is 1.0, and again when it is below 0.8."""

    def __init__(self, limits: FlowControl) -> None:
        self._limits = limits
        self._paused = False

    def is_open(self, messages: int, size: int) -> bool:
        """Tell whether one more may be received while so much is in hand."""
        load = self._limits.load(messages, size)
        self._paused = load >= (RESUME if self._paused else PAUSE)
        return not self._paused
