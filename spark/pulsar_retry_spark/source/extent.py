"""The first and last message of each partition, for a batch query. Only readers are used."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor

import attrs
import pulsar

from pulsar_retry_spark.clients import CachedClient
from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.source.positions import END, MessagePosition
from pulsar_retry_spark.source.reading import Piece, Unread, message_at, messages
from pulsar_retry_spark.source.topics import AT_ONCE, Partition

#: Milliseconds to wait for the last message; it may not come, as the last entry may be a chunk.
_LAST_TIMEOUT_MS = 5_000

#: Milliseconds by which clocks may differ.
CLOCK_DIFFERENCE_MS = 60_000

#: How many messages are fetched ahead in the search for the last complete message.
_QUEUE = 1000

#: Milliseconds to wait for the first message, which has to come.
_FIRST_TIMEOUT_MS = 30_000


@attrs.frozen
class Extent:
    """What a partition holds.

    Attributes:
        first: The first message; None if it is not known.
        last: The last message; `END` if it is not known, because the last entry is only a chunk.
    """

    first: MessagePosition | None
    last: MessagePosition


def held(
    client: CachedClient, partitions: Iterable[Partition], *, since: int | None, strict: bool
) -> dict[str, Extent]:
    """Return the extent of each partition; partitions without a message are left out.

    Args:
        client: Reads the messages.
        partitions: The partitions.
        since: The publish time in milliseconds before which messages are left out.
        strict: Whether it is an error if the last message is encrypted.

    Raises:
        PulsarSourceError: there are messages, but none comes, or they are encrypted.
        pulsar.PulsarException: the broker was not reached, or refuses.
    """
    wanted = [Piece(each, None, END, since=since, strict=strict) for each in partitions]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = zip(wanted, threads.map(lambda each: _extent(client, each), wanted), strict=True)
        return {piece.partition.name: each for piece, each in found if each is not None}


def last_messages(
    client: CachedClient, partitions: Iterable[Partition], *, strict: bool
) -> dict[str, MessagePosition]:
    """Return the last complete message of each partition that has one.

    Raises:
        PulsarSourceError: there are messages, but none comes, or they are encrypted and *strict* is
            set.
        pulsar.PulsarException: the broker was not reached, or refuses.
    """

    def last(partition: Partition) -> MessagePosition | None:
        found = message_at(client, partition.name, pulsar.MessageId.latest, _LAST_TIMEOUT_MS)
        if found != END:
            return found
        # The last entry is a chunk: look for the last complete message that there is now.
        until = round(time.time() * 1000) + CLOCK_DIFFERENCE_MS
        piece = Piece(partition, None, END, until=until, certain=False, strict=strict)
        whole = messages(client, piece, _QUEUE)
        last = next(iter(deque((position for position, _ in whole), maxlen=1)), None)
        if last is None:
            raise PulsarSourceError("TIMEOUT", f"{partition.name} has messages, but none comes")
        return MessagePosition(*last)

    partitions = list(partitions)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = zip(partitions, threads.map(last, partitions), strict=True)
        return {partition.name: each for partition, each in found if each is not None}


def _extent(client: CachedClient, piece: Piece) -> Extent | None:
    name, unread = piece.partition.name, Unread(client, piece)
    last = message_at(client, name, pulsar.MessageId.latest, _LAST_TIMEOUT_MS)
    if last is None:
        return None
    encrypted = last == END and unread.is_encrypted(pulsar.MessageId.latest)
    patience = _LAST_TIMEOUT_MS if encrypted else _FIRST_TIMEOUT_MS
    first = message_at(client, name, pulsar.MessageId.earliest, patience, piece.since)
    if first is None or (first != END and first > last):
        return None  # all of it up to the last one was published before
    if last == first == END:
        if encrypted:
            unread.warn()
            return None
        # A partition that holds only an incomplete chunked message looks like this, too.
        raise PulsarSourceError(
            "TIMEOUT",
            f"{name} has messages, but the broker delivers neither the first nor the last one",
        )
    return Extent(None if first == END else first, last)
