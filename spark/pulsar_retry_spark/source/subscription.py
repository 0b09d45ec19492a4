"""The durable subscription of a stream: it keeps the broker from deleting unread messages.

Nothing is read with it. It is acknowledged as far as the checkpoint goes. It is exclusive, so it
keeps a second query away.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any

import attrs
import pulsar

from pulsar_retry.policy.backoff import Exponential
from pulsar_retry.runtime.upstream import has_message
from pulsar_retry_spark.clients import CachedClient
from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.source.patience import closed, last_message_id, patiently
from pulsar_retry_spark.source.positions import MessagePosition
from pulsar_retry_spark.source.reading import LOOK_BACK, Piece, deleted, last_of
from pulsar_retry_spark.source.topics import Partition

#: Seconds in which the subscription becomes free after a query has ended.
_BUSY_FOR = 10.0
_BUSY_BACKOFF = Exponential(0.05, 1)

#: Milliseconds to wait for a message that exists.
_TIMEOUT_MS = 10_000

_NOTHING = (-1, -1)


@attrs.define
class ReadingSubscription:
    """The consumers of the subscription, one for each partition.

    Attributes:
        client: The client that opens them.
        name: The name of the subscription.
        strict: Whether lost data is an error.
    """

    client: CachedClient
    name: str
    strict: bool
    _consumers: dict[str, Any] = attrs.field(factory=dict, init=False)
    _acknowledged: dict[str, tuple[int, int]] = attrs.field(factory=dict, init=False)
    _known_ends: dict[MessagePosition, MessagePosition | None] = attrs.field(
        factory=dict, init=False
    )

    def add(self, partition: Partition, after: MessagePosition | None, *, latest: bool) -> None:
        """Subscribe to *partition*, whose messages up to *after* have been processed.

        Args:
            partition: A partition that exists.
            after: The position in the checkpoint; None if nothing has been read of the partition.
            latest: Whether a new subscription starts at the end.

        Raises:
            PulsarSourceError: another query has the subscription, or data is lost.
            pulsar.PulsarException: the broker was not reached, is too slow, or refuses.
        """
        name = partition.name
        following = self._first_from(name, after) if after and self.strict else None
        if following is None or after is None or following.ledger == after.ledger:
            self._consumers[name] = self._subscribe(name, at_end=latest)
            return
        # The ledger was deleted. That is correct if all of it was processed: the subscription then
        # stands at the first message that is left. A subscription that is made only now does not.
        # The two can't be told apart, so it is never removed here: it may hold all that is left.
        with ExitStack() as on_failure:
            consumer = self._subscribe(name, at_end=True)
            on_failure.callback(consumer.close)
            if not self._starts_at(consumer, name, following):
                raise deleted(name, f"does not have what came after {after}")
            on_failure.pop_all()
        self._consumers[name] = consumer
        self._acknowledged[name] = after.ledger, after.entry

    def check(self, partition: Partition, after: MessagePosition) -> None:
        """Check that nothing was deleted after *after*, in whose ledger the partition does not end.

        The subscription keeps no message that is older than the namespace allows.

        Raises:
            PulsarSourceError: something was deleted, and this is an error.
            pulsar.PulsarException: the broker was not reached, is too slow, or refuses.
        """
        name = partition.name
        following = self._first_from(name, after) if self.strict else None
        if following is None or following.ledger == after.ledger:
            return
        if self._acknowledged.get(name) != (after.ledger, after.entry):
            raise deleted(name, f"does not have what came after {after}")
        with suppress(pulsar.PulsarException):  # the broker has gone, and the consumer with it
            self._consumers.pop(name).close()
        patiently(lambda: self.add(partition, after, latest=False))  # else it stays away

    def last(self, partition: str) -> MessagePosition | None:
        """Return the last entry of a partition; None if it has no entry.

        Raises:
            pulsar.PulsarException: the broker was not reached.
        """
        last = last_message_id(self._consumers[partition])
        return None if last is None else MessagePosition.of(last)

    def last_message(
        self, partition: Partition, after: MessagePosition | None
    ) -> MessagePosition | None:
        """Return the last message of a partition; None if there is no message after *after*.

        That is the last entry, unless the entry is a chunk of a message that is not complete (yet).
        A stream that stopped between two chunks would never get that message.
        """
        last = self.last(partition.name)
        if last is None or last.batch >= 0:  # a message in a batch is not chunked
            return last
        if last not in self._known_ends:
            self._known_ends = {
                k: v for k, v in self._known_ends.items() if k.ledger != last.ledger
            }
            self._known_ends[last] = self._last_whole(partition, last, after)
        return self._known_ends[last]

    def _last_whole(
        self, partition: Partition, last: MessagePosition, after: MessagePosition | None
    ) -> MessagePosition | None:
        """Return the last complete message up to *last* and after *after*; None without one.

        Only the last few entries are read, or all after *after* if they hold no complete message.
        """
        for start in (last.back(LOOK_BACK), after):
            piece = Piece(partition, start, last, certain=False, strict=self.strict)
            if (found := last_of(self.client, piece, LOOK_BACK)) is not None:
                return found
        return None

    def acknowledge(self, positions: Mapping[str, MessagePosition]) -> None:
        """Let the broker delete everything up to *positions*.

        If a position is in the middle of a batch, or may be, the whole batch is kept.
        """
        for name, position in positions.items():
            if name not in self._consumers:
                continue
            whole = position.batch < 0 or position == self.last(name)
            entry = position.ledger, position.entry - (not whole)
            if entry > self._acknowledged.get(name, _NOTHING):
                self._consumers[name].acknowledge_cumulative(pulsar.MessageId(-1, *entry, -1))
                self._acknowledged[name] = entry

    def close(self) -> None:
        """Close the consumers, after their acknowledgements are sent; the subscription remains."""
        for consumer in self._consumers.values():
            with suppress(pulsar.PulsarException):  # its broker has gone, and the consumer with it
                consumer.close()
        self._consumers.clear()

    def _subscribe(self, name: str, *, at_end: bool) -> Any:
        start = pulsar.InitialPosition.Latest if at_end else pulsar.InitialPosition.Earliest

        give_up_at = time.monotonic() + _BUSY_FOR
        tries = 0
        while True:
            try:
                return self.client.client.subscribe(
                    name,
                    self.name,
                    initial_position=start,
                    receiver_queue_size=1,
                    crypto_key_reader=self.client.keys,
                )
            except pulsar.ConsumerBusy:
                if time.monotonic() > give_up_at:
                    raise PulsarSourceError(
                        "SUBSCRIPTION_BUSY",
                        f"another query reads {name} through subscription {self.name!r}: set "
                        "another subscription.reader for this one",
                    ) from None
            tries += 1
            time.sleep(_BUSY_BACKOFF.delay(tries))

    def _first_from(self, name: str, position: MessagePosition) -> MessagePosition | None:
        """Return the first message that still exists from the ledger of *position* on, if any."""
        start = pulsar.MessageId(-1, position.ledger, 0, -1)
        with closed(self.client.reader(name, start)) as reader:
            if not has_message(reader):
                return None
            return MessagePosition.of(reader.read_next(_TIMEOUT_MS).message_id())

    def _starts_at(self, consumer: Any, name: str, position: MessagePosition) -> bool:
        """Return whether the first message that is not acknowledged is the one at *position*."""
        try:
            return MessagePosition.of(consumer.receive(_TIMEOUT_MS).message_id()) == position
        except pulsar.Timeout:
            # Either nothing is left for the subscription, or the broker is too slow: then this
            # reader times out as well.
            self._first_from(name, position)
            return False
