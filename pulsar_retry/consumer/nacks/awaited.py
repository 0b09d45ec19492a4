"""Which requested chunked messages have not come, and when to request them again.

pulsar-client 3.13 assembles a message from its chunks in a context. If a first chunk arrives while
its message already has a context, pulsar-client drops the chunk, the context, and the following
chunks. So a redelivery that begins while the chunks of a message arrive loses the message: the
broker counts it as delivered, and sends it again only on request.

In this way messages are also lost that were never received here: on Exclusive and Failover
subscriptions, where a redelivery includes everything unacknowledged, and on any subscription when
a connection breaks. These messages are unknown here. Therefore a consumer that has seen a chunked
message requests everything once more when it waits for messages and holds none. At that moment,
only lost messages can come.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from pulsar_retry.consumer.nacks.chunks import ChunkedId
from pulsar_retry.consumer.nacks.pending import Entry

#: Seconds without a message after which a requested message counts as lost, if the application is
#: waiting for messages. The time doubles with each request, up to `LONGEST`. If the message was
#: only late, because the broker is busy, it is delivered twice.
CALM = 5.0

#: Seconds without a message after which everything may be requested. A message that arrives exactly
#: then is delivered twice, so this should be a time when none is expected.
QUIET = 10.0

#: The maximum number of seconds between two such requests. It is also the time after which a
#: message first counts as lost in any case. It is long, because a slow application can leave
#: messages waiting in pulsar-client.
LONGEST = 60.0

#: How often a message of a Shared subscription is requested. The broker may have given it to
#: another consumer, and does not report that.
MOST_TIMES = 8

#: How often everything is requested if no chunked message was seen.
MOST_ROUNDS = 3

#: How many seconds the consumer must hold nothing: pulsar-client sends acknowledgements late.
SETTLED = 0.5


@attrs.define
class _Asked:
    """A message that was requested: when, and how often."""

    message_id: ChunkedId
    when: float
    times: int = 1

    def is_late(self, now: float) -> bool:
        """Tell whether it counts as lost, even if the consumer is busy."""
        return now - self.when >= LONGEST * 2.0 ** (self.times - 1)


@attrs.frozen
class State:
    """The state of the application: whether it waits for a message, and whether it holds none."""

    is_waiting: bool = False
    is_free: bool = False


@attrs.frozen
class Lost:
    """What to request again: these messages, or everything that is unacknowledged."""

    ids: list[ChunkedId]
    everything: bool


class Awaited:
    """The messages that one of pulsar-client's consumers has requested from the broker.

    Attributes:
        is_of_all: Whether a redelivery includes everything that is unacknowledged.
    """

    def __init__(self, *, is_of_all: bool) -> None:
        self.is_of_all = is_of_all
        self._asked: dict[Entry, _Asked] = {}
        self._has_chunked = False
        self._last_received = self._last_request = float("-inf")
        self._rounds = 0
        self._is_free = False

    def ask(self, ids: Iterable[Any], now: float) -> None:
        """Record requested messages; their ids have the form that `with_chunks` returns."""
        self._last_request = now
        self._rounds = 0
        for each in ids:
            if type(each) is ChunkedId:
                self._has_chunked = True
                self._asked[each.last] = _Asked(each, now)

    def come(self, message_id: Any, now: float) -> None:
        """Record a received message; its id has the form that `with_chunks` returns."""
        self._last_received = now
        self._is_free = False
        if type(message_id) is ChunkedId:
            self._has_chunked = True
            self._asked.pop(message_id.last, None)

    def forget(self) -> None:
        """Stop waiting for all messages."""
        self._asked.clear()

    def lost(self, now: float, state: State) -> Lost:
        """Return what to request again, and record the request."""
        is_calm = state.is_waiting and now >= self._due(CALM)
        found = [each for each in self._asked.values() if is_calm or each.is_late(now)]
        for each in found:
            each.when = now
            each.times += 1
            if each.times > MOST_TIMES and not self.is_of_all:
                del self._asked[each.message_id.last]
        was_free, self._is_free = (
            self._is_free,
            state.is_free and is_calm and now >= self._due(QUIET),
        )
        everything = was_free and self._is_free
        if everything or found:
            self._last_request = now
            self._rounds += 1
        return Lost([each.message_id for each in found], everything)

    def next_look(self, now: float) -> float | None:
        """Return the seconds until the next check for lost messages; None if none can be lost."""
        has_asked_for_all = self.is_of_all and self._last_request > float("-inf")
        if self._asked:
            due = self._due(CALM)
        elif self._has_chunked or (has_asked_for_all and self._rounds < MOST_ROUNDS):
            due = self._due(QUIET)
        else:
            return None
        return due - now if due > now else SETTLED if self._is_free else CALM

    def _due(self, quiet: float) -> float:
        """Return when to request again: *quiet* seconds after the last message, or later."""
        patience = min(CALM * 2.0 ** min(self._rounds, 10), LONGEST)
        return max(self._last_received + quiet, self._last_request + max(patience, quiet))
