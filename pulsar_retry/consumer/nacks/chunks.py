"""Which entries the broker has to redeliver for a chunked message.

Each chunk is an entry. pulsar-client 3.13 acknowledges all of them, but nacks the last one alone,
and a last chunk without the others is no message. It tells the ids of the first and the last chunk,
none in between; so all entries from the first to the last are asked for. The broker redelivers only
what is unacknowledged at this consumer: usually the chunks, for a consumer has got whatever lies
between them earlier. The first and the last chunk of another message in between are left out as far
as they are known: a first chunk without the others would be in the way of its own message later,
and pulsar-client acknowledges it after a minute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any

import _pulsar
import attrs

from pulsar_retry.consumer.nacks.pending import Entry

#: The tag of the first chunk's id in a serialized id (``MessageIdData.first_chunk_message_id``).
_TAG = 7 << 3 | 2

#: How pulsar-client prints the id of a chunked message: the first and the last chunk's.
_FIRST_AND_LAST = re.compile(r"\((\d+),(\d+),-?\d+,-?\d+\);\((\d+),(\d+),(-?\d+),-?\d+\)")

#: Entries that are asked for where a ledger ends between two chunks: how many it has is not known,
#: and the broker ignores ids that do not exist.
_TAIL = 1000


@attrs.frozen
class ChunkedId:
    """The id of a chunked message: in everything that is asked of it, that of its last chunk.

    Attributes:
        first: The entry of the first chunk.
        last: The entry of the last one.
        of_partition: The partition, -1: none.
        topics: The full names of the topics, or partitions, that it may be from.
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
        """Return that it is in no batch."""
        return -1

    def partition(self) -> int:
        """Return the partition."""
        return self.of_partition

    def entries(self, *others: Container[Entry]) -> Iterator[Any]:
        """Return the raw id of each entry that is to be redelivered, without those of *others*."""
        for entry in self._span():
            if entry in (self.first, self.last) or not any(entry in each for each in others):
                yield from self.at(entry)

    def at(self, entry: Entry) -> Iterator[Any]:
        """Return the raw id of *entry*, at each topic that it may be from."""
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


def with_chunks(message_id: Any, topics: Callable[[], Iterable[str]]) -> Any:
    """Return a raw message id as it is to be nacked: a `ChunkedId` if its message is chunked.

    Where nobody knows the topic, it is returned as it is.

    Args:
        message_id: The raw id.
        topics: Returns the full names of the topics, or partitions, that it may be from.
    """
    if message_id.batch_index() >= 0 or _TAG not in message_id.serialize():
        return message_id  # which is what nearly all are
    found = _FIRST_AND_LAST.fullmatch(str(message_id))
    if found is None or not (names := tuple(topics())):
        return message_id
    *entries, partition = map(int, found.groups())
    return ChunkedId((entries[0], entries[1]), (entries[2], entries[3]), partition, names)


def expanded(ids: Iterable[Any], *others: Container[Entry]) -> list[Any]:
    """Return the raw ids to nack for *ids*, among which are `ChunkedId`s; see its `entries`."""
    raw_ids: list[Any] = []
    for each in ids:
        if isinstance(each, ChunkedId):
            raw_ids.extend(each.entries(*others))
        else:
            raw_ids.append(each)
    return raw_ids


def ids_for_all(message_id: Any) -> Iterable[Any]:
    """Return the raw ids to nack where that has everything redelivered: not one for each chunk."""
    return message_id.at(message_id.last) if isinstance(message_id, ChunkedId) else (message_id,)
