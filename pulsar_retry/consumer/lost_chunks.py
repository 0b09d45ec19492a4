"""Requests chunked messages again that pulsar-client has dropped on their way.

pulsar-client 3.13 drops a first chunk if it is putting that message together already, and with it
the chunks that follow. So a redelivery that begins, or a connection that breaks, while the chunks
of a message arrive loses the message: the broker counts it as delivered, and sends it again only on
request. Nobody here knows such a message, if it was never received. Therefore a consumer that has
received a chunked message requests everything once more when it holds nothing, waits for messages,
and gets none. At that moment, only lost messages can come.
"""

from __future__ import annotations

from pulsar_retry.consumer.in_hand import InHand
from pulsar_retry.consumer.outbox import Outbox
from pulsar_retry.runtime.clock import Timer

#: Seconds without a message after which everything is requested. A message that arrives exactly
#: then is delivered twice.
QUIET = 10.0

#: The time doubles with each request until a message comes, up to this one.
LONGEST = 60.0


class LostChunks:
    """Looks from time to time whether one consumer waits in vain, once it has got chunks."""

    def __init__(self, in_hand: InHand, outbox: Outbox, timer: Timer) -> None:
        self._in_hand = in_hand
        self._outbox = outbox
        self._timer = timer
        self._received = 0
        self._pause = QUIET
        in_hand.chunks_came = self.check

    def check(self) -> None:
        """Request everything if nothing has come since the last call; the timer calls it."""
        in_hand = self._in_hand
        is_quiet = in_hand.received == self._received and in_hand.is_waiting
        if is_quiet and not in_hand.unsettled and not self._outbox.in_flight:
            for source in in_hand.sources:
                source.ask_for_all(waits=True)
            self._pause = min(2 * self._pause, LONGEST)
        else:
            self._pause = QUIET
        self._received, in_hand.found_nothing = in_hand.received, False
        self._timer.check_later(self, self._pause)

    def close(self) -> None:
        """Look no more."""
        self._timer.discard(self)
