"""Flow control: how much may be in hand before receiving pauses. Pure."""

from __future__ import annotations

import attrs

from pulsar_retry.policy.checks import whole

#: Receiving pauses at this load. This number and the next one are those of python-pubsub.
PAUSE = 1.0
#: Receiving continues below this load.
RESUME = 0.8

#: How many messages are fetched ahead at most, unless the user says a number.
_MOST_FETCHED = 200


def _max_messages(value: int) -> int:
    return whole("max_messages", value)


def _max_bytes(value: int) -> int:
    return whole("max_bytes", value)


def _prefetch(value: int | None) -> int | None:
    return None if value is None else whole("prefetch", value)


@attrs.frozen
class FlowControl:
    """How much a subscriber has in hand at most.

    A message is in hand from its receipt until it is settled: while it waits for a worker, is
    handled, or its letter is being published. One message may exceed the byte limit; the message
    limit is never exceeded. Messages in lanes have a limit of their own (`Lanes`).

    Attributes:
        max_messages: The limit in messages.
        max_bytes: The limit in bytes of payload.
        prefetch: How many messages pulsar-client fetches ahead (its ``receiver_queue_size``), in
            addition to those in hand. A small number leaves more to other consumers. None: as many
            as *max_messages*, at most 200.
    """

    max_messages: int = attrs.field(default=1000, converter=_max_messages)
    max_bytes: int = attrs.field(default=100 << 20, converter=_max_bytes)
    prefetch: int | None = attrs.field(default=None, kw_only=True, converter=_prefetch)

    @property
    def fetched_ahead(self) -> int:
        """How many messages are fetched ahead."""
        return min(_MOST_FETCHED, self.max_messages) if self.prefetch is None else self.prefetch

    def load(self, messages: int, size: int) -> float:
        """Return how much of the limits is used: the larger of the two ratios, 1.0 at a limit."""
        return max(messages / self.max_messages, size / self.max_bytes)


class FlowGate:
    """Closes when the load reaches 1.0, and opens again when it is below 0.8."""

    def __init__(self, limits: FlowControl) -> None:
        self._limits = limits
        self._paused = False

    def is_open(self, messages: int, size: int) -> bool:
        """Tell whether one more message may be received while this much is in hand."""
        load = self._limits.load(messages, size)
        self._paused = load >= (RESUME if self._paused else PAUSE)
        return not self._paused
