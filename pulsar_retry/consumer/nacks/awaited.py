"""Which chunked messages were asked for and have not come, and when to ask for them again. Pure.

pulsar-client 3.13 puts a message together from its chunks in a context. A first chunk that comes
while there is a context of its message already is dropped, together with that context, and with
what follows of the message. So a redelivery that begins while the chunks of a message arrive loses
that message: the broker counts it as delivered, and sends it again only when it is asked to.

It so loses messages that were never received here, too: on Exclusive and Failover subscriptions,
where a redelivery is of everything that is unacknowledged, and anywhere when a connection breaks.
Nobody knows of these. So a consumer that has seen a chunked message asks for everything once more
when it waits for messages and holds none: then only what was lost can come.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import attrs

from pulsar_retry.consumer.nacks.chunks import ChunkedId
from pulsar_retry.consumer.nacks.pending import Entry

#: Seconds without a message after which what was asked for counts as lost, where the application
#: waits for messages. Each time it is asked for again it has twice as long, up to `LONGEST`. On a
#: busy broker it may only be late, and then comes twice.
CALM = 5.0

#: Seconds without a message after which everything may be asked for. A message that arrives at that
#: very moment comes twice, so it should be one when none is expected.
QUIET = 10.0

#: Seconds between two such requests at most, and after which it counts as lost in any case, at
#: first: the application may be so slow that it waits in pulsar-client for so long.
LONGEST = 60.0

#: How often a message of a Shared subscription is asked for: the broker may have given it to
#: another consumer, and does not say so.
MOST_TIMES = 8

#: How often everything is asked for where no chunked message was seen.
MOST_ROUNDS = 3

#: Seconds for which the consumer is to hold nothing: pulsar-client sends acknowledgements late.
SETTLED = 0.5


@attrs.define
class _Asked:
    """A message that was asked for: when, and how often."""

    message_id: ChunkedId
    when: float
    times: int = 1

    def is_late(self, now: float) -> bool:
        """Tell whether it counts as lost, however busy the consumer is."""
        return now - self.when >= LONGEST * 2.0 ** (self.times - 1)


@attrs.frozen
class State:
    """What the application does: whether it waits for a message, and whether it holds none."""

    is_waiting: bool = False
    is_free: bool = False


@attrs.frozen
class Lost:
    """What is to be asked for again: these messages, or everything that is unacknowledged."""

    ids: list[ChunkedId]
    everything: bool


class Awaited:
    """What one of pulsar-client's consumers has asked the broker for.

    Attributes:
        is_of_all: Whether a redelivery is of everything that is unacknowledged.
    """

    def __init__(self, *, is_of_all: bool) -> None:
        self.is_of_all = is_of_all
        self._asked: dict[Entry, _Asked] = {}
        self._has_chunked = False
        self._heard = self._last = float("-inf")
        self._rounds = 0
        self._is_free = False

    def ask(self, ids: Iterable[Any], now: float) -> None:
        """Take note that these were asked for, by their ids as `with_chunks` returns them."""
        self._last = now
        self._rounds = 0
        for each in ids:
            if type(each) is ChunkedId:
                self._has_chunked = True
                self._asked[each.last] = _Asked(each, now)

    def come(self, message_id: Any, now: float) -> None:
        """Take note that a message was received, by its id as `with_chunks` returns it."""
        self._heard = now
        self._is_free = False
        if type(message_id) is ChunkedId:
            self._has_chunked = True
            self._asked.pop(message_id.last, None)

    def forget(self) -> None:
        """Await nothing any more."""
        self._asked.clear()

    def lost(self, now: float, state: State) -> Lost:
        """Return what is to be asked for again, and take note that it is."""
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
            self._last = now
            self._rounds += 1
        return Lost([each.message_id for each in found], everything)

    def next_look(self, now: float) -> float | None:
        """Return in how many seconds to look what is lost; None: nothing can be."""
        has_asked_for_all = self.is_of_all and self._last > float("-inf")
        if self._asked:
            due = self._due(CALM)
        elif self._has_chunked or (has_asked_for_all and self._rounds < MOST_ROUNDS):
            due = self._due(QUIET)
        else:
            return None
        return due - now if due > now else SETTLED if self._is_free else CALM

    def _due(self, quiet: float) -> float:
        """Return when to ask again, if nothing comes before: after so many seconds of quiet."""
        patience = min(CALM * 2.0 ** min(self._rounds, 10), LONGEST)
        return max(self._heard + quiet, self._last + max(patience, quiet))
