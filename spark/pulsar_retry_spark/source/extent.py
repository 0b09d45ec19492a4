"""The first and last message of each partition, for a batch query. Only readers are used."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import attrs
import pulsar

from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.source.patience import has_message
from pulsar_retry_spark.source.positions import END, MessagePosition
from pulsar_retry_spark.source.topics import AT_ONCE

#: Milliseconds to wait for the last message; it may not come, as the last entry may be a chunk.
_LAST_TIMEOUT_MS = 5_000

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
    client: pulsar.Client, name: str, at: pulsar.MessageId, patience: int
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
