"""The first and last message of each partition, for a batch query. Only readers are used."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import _pulsar
import attrs
import pulsar

from pulsar_retry.runtime.upstream import has_message
from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.source.positions import END, MessagePosition
from pulsar_retry_spark.source.reading import Piece, messages
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


def held(client: pulsar.Client, names: Iterable[str]) -> dict[str, Extent]:
    """Return the extent of each partition; partitions without a message are left out.

    Raises:
        PulsarSourceError: there are messages, but none comes.
        pulsar.PulsarException: the broker was not reached, or refuses.
    """
    names = list(names)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = threads.map(lambda name: _extent(client, name), names)
        return {name: each for name, each in zip(names, found, strict=True) if each is not None}


def last_messages(
    client: pulsar.Client, partitions: Iterable[Partition]
) -> dict[str, MessagePosition]:
    """Return the last complete message of each partition that has one.

    Raises:
        PulsarSourceError: there are messages, but none comes.
        pulsar.PulsarException: the broker was not reached, or refuses.
    """

    def last(partition: Partition) -> MessagePosition | None:
        found = _message(client, partition.name, pulsar.MessageId.latest, _LAST_TIMEOUT_MS)
        if found != END:
            return found
        # The last entry is a chunk: look for the last complete message that there is now.
        until = round(time.time() * 1000) + CLOCK_DIFFERENCE_MS
        whole = messages(client, Piece(partition, None, END, until=until, certain=False), _QUEUE)
        last = next(iter(deque((position for position, _ in whole), maxlen=1)), None)
        if last is None:
            raise PulsarSourceError("TIMEOUT", f"{partition.name} has messages, but none comes")
        return MessagePosition(*last)

    partitions = list(partitions)
    with ThreadPoolExecutor(AT_ONCE) as threads:
        found = zip(partitions, threads.map(last, partitions), strict=True)
        return {partition.name: each for partition, each in found if each is not None}


def _extent(client: pulsar.Client, name: str) -> Extent | None:
    last = _message(client, name, pulsar.MessageId.latest, _LAST_TIMEOUT_MS)
    if last is None:
        return None
    first = _message(client, name, pulsar.MessageId.earliest, _FIRST_TIMEOUT_MS)
    if last == first == END:
        # A partition that holds only an incomplete chunked message looks like this, too.
        raise PulsarSourceError(
            "TIMEOUT",
            f"{name} has messages, but the broker delivers neither the first nor the last one",
        )
    return Extent(None if first == END else first, last)


def _message(
    client: pulsar.Client, name: str, at: _pulsar.MessageId, patience: int
) -> MessagePosition | None:
    """Return the message at one of the ends; None if there is none; `END` if it does not come."""
    reader = client.create_reader(name, at, start_message_id_inclusive=True, receiver_queue_size=1)
    with closing(reader):
        # This call also moves a reader to the last message.
        if not has_message(reader):
            return None
        try:
            return MessagePosition.of(reader.read_next(patience).message_id())
        except pulsar.Timeout:
            return END
