"""Which entries the broker has to redeliver for a chunked message.

Each chunk is an entry. pulsar-client 3.13 acknowledges all chunks, but nacks only the last one, and
a last chunk alone is not a message. pulsar-client provides the ids of the first and the last chunk,
but not of those in between. Therefore all entries from the first to the last are requested. The
broker redelivers only entries that are unacknowledged at this consumer. These are usually the
chunks, because the consumer has received earlier what lies between them. The first and last chunks
of other messages in between are left out if they are known. A first chunk without the others would
block its own message later, and pulsar-client acknowledges it after a minute.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from typing import Any

import _pulsar
import attrs

from pulsar_retry.consumer.nacks.pending import Entry

#: The tag of the first chunk's id in a serialized id (``MessageIdData.first_chunk_message_id``).
_TAG = 7 << 3 | 2

#: The text form of a chunked message's id in pulsar-client: that of the first and the last chunk.
_FIRST_AND_LAST = re.compile(r"\((\d+),(\d+),-?\d+,-?\d+\);\((\d+),(\d+),(-?\d+),-?\d+\)")

#: How many entries are requested if a ledger ends between two chunks. The ledger's number of
#: entries is unknown, and the broker ignores ids that do not exist.
_TAIL = 1000


@attrs.frozen
class ChunkedId:
    """The id of a chunked message. Methods of an ordinary id return the values of its last chunk.

    Attributes:
        first: The entry of the first chunk.
        last: The entry of the last chunk.
        of_partition: The partition; -1 if there is none.
        topics: The full names of the topics, or partitions, that it can belong to.
    """

    first: Entry
    last: Entry
    of_partition: int
    topics: tuple[str, ...]

    def ledger_id(self) -> int:
        """Return the last chunk's ledger."""
        return self.last[0]

    def entry_id(self) -> int:
        """Return the last chunk's entry."""
        return self.last[1]

    def batch_index(self) -> int:
        """Return -1, because a chunked message is never in a batch."""
        return -1

    def partition(self) -> int:
        """Return the partition."""
        return self.of_partition

    def entries(self, *others: Container[Entry]) -> Iterator[Any]:
        """Return the raw id of each entry to redeliver, except those of *others*."""
        for entry in self._span():
            if entry in (self.first, self.last) or not any(entry in each for each in others):
                yield from self.at(entry)

    def at(self, entry: Entry) -> Iterator[Any]:
        """Return the raw id of *entry*, for each topic that it can belong to."""
        for topic in self.topics:
            message_id = _pulsar.MessageId(self.of_partition, *entry, -1)
            message_id.topic_name(topic)
            yield message_id

    def _span(self) -> Iterator[Entry]:
        (ledger, entry), (last_ledger, last_entry) = self.first, self.last
        if ledger != last_ledger:
            yield from ((ledger, each) for each in range(entry, entry + _TAIL))
            entry = 0
        yield from ((last_ledger, each) for each in range(entry, last_entry + 1))


def may_be_chunked(message_id: Any) -> bool:
    """Tell whether the message of a raw id may be chunked; this is faster than `with_chunks`."""
    return message_id.batch_index() < 0 and _TAG in message_id.serialize()


def with_chunks(message_id: Any, topics: Iterable[str]) -> Any:
    """Return a raw message id in the form for nacks: a `ChunkedId` if its message is chunked.

    If the topic is unknown, the id is returned unchanged.

    Args:
        message_id: The raw id.
        topics: The full names of the topics, or partitions, that the id can belong to.
    """
    found = _FIRST_AND_LAST.fullmatch(str(message_id))
    if found is None or not (names := tuple(topics)):
        return message_id
    *entries, partition = map(int, found.groups())
    return ChunkedId((entries[0], entries[1]), (entries[2], entries[3]), partition, names)


def expanded(ids: Iterable[Any], *others: Container[Entry]) -> list[Any]:
    """Return the raw ids to nack for *ids*, which can include `ChunkedId`s (see its `entries`)."""
    raw_ids: list[Any] = []
    for each in ids:
        if isinstance(each, ChunkedId):
            raw_ids.extend(each.entries(*others))
        else:
            raw_ids.append(each)
    return raw_ids


def ids_for_all(message_id: Any) -> Iterable[Any]:
    """Return the raw ids to nack when one nack has everything redelivered: one, not each chunk."""
    return message_id.at(message_id.last) if isinstance(message_id, ChunkedId) else (message_id,)
