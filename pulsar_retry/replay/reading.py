"""Reads dead letters without consuming them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import _pulsar
import pulsar
from pulsar import Client as BareClient

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.position import Position
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Log, cursor_of

#: Milliseconds to wait for a message that is known to be stored.
_PATIENCE_MS = 30_000
#: Milliseconds in which `tail_letters` reads each partition once.
_TAIL_MS = 200


class LetterInPlace(NamedTuple):
    """A message and its place.

    Attributes:
        raw: The `_pulsar.Message`.
        topic: The full name of its partition.
        position: Its position in the partition.
    """

    raw: Any
    topic: str
    position: Position


def read_letters(
    client: pulsar.Client,
    admin: AdminClient,
    partitions: list[str],
    subscription: str | None = None,
) -> Iterator[LetterInPlace]:
    """Yield the current messages of *partitions*, one partition after the other, unchanged.

    Args:
        client: Reads the messages.
        admin: Gives the current state of the partitions.
        partitions: Full names.
        subscription: Leave out messages that this subscription has acknowledged. Acknowledged
            messages of a batch that is not completely acknowledged are not left out, because the
            broker does not report them.
    """
    for topic in partitions:
        yield from _read_partition(client, admin, topic, subscription)


def _read_partition(
    client: pulsar.Client, admin: AdminClient, topic: str, subscription: str | None
) -> Iterator[LetterInPlace]:
    stats = admin.topics.internal_stats(topic)
    log = Log.read(stats)
    cursor = None if subscription is None else cursor_of(stats, subscription)
    done = None if cursor is None else AckState.read(cursor, log)
    if log.last.entry < 0 or (done is not None and done.mark >= log.last):
        return
    start = pulsar.MessageId.earliest if done is None else _just_after(done.mark)
    with reader_of(client, topic, start) as reader:
        while reader.has_message_available():
            raw = reader.read_next(_PATIENCE_MS)
            position = Position.of(raw.message_id())
            place = EntryPlace(position.ledger, position.entry)
            if place > log.last:
                return
            if done is None or not done.is_acknowledged(place):
                yield LetterInPlace(raw, topic, position)


def tail_letters(client: pulsar.Client, partitions: list[str]) -> Iterator[LetterInPlace]:
    """Yield messages that arrive in *partitions* from now on, without end and unchanged."""
    with contextlib.ExitStack() as stack:
        latest = pulsar.MessageId.latest
        readers = [stack.enter_context(reader_of(client, topic, latest)) for topic in partitions]
        wait = max(10, _TAIL_MS // len(readers))
        while True:
            for topic, reader in zip(partitions, readers, strict=True):
                with contextlib.suppress(_pulsar.Timeout):
                    raw = reader.read_next(wait)
                    yield LetterInPlace(raw, topic, Position.of(raw.message_id()))


def read_one(client: pulsar.Client, partitions: list[str], message_id: str) -> LetterInPlace | None:
    """Return one message; None if it does not exist.

    Args:
        client: Reads the message.
        partitions: The partitions of the topic.
        message_id: The id as it is printed. Without a batch index, the first message of a batch is
            returned.

    Raises:
        ConfigError: *message_id* is not a message id.
    """
    asked = Position.parse(message_id)
    topic = partitions[asked.partition] if 0 <= asked.partition < len(partitions) else partitions[0]
    before = pulsar.MessageId(-1, asked.ledger, asked.entry - 1, -1)
    with reader_of(client, topic, before) as reader:
        while reader.has_message_available():
            raw = reader.read_next(_PATIENCE_MS)
            found = Position.of(raw.message_id())
            if (found.ledger, found.entry) != (asked.ledger, asked.entry):
                return None
            if asked.batch in {-1, found.batch}:
                return LetterInPlace(raw, topic, found)
    return None


@contextlib.contextmanager
def reader_of(
    client: pulsar.Client, topic: str, start: pulsar.MessageId | _pulsar.MessageId
) -> Iterator[Any]:
    """Yield a raw reader of one partition. It has no durable subscription that would remain."""
    bare = BareClient.create_reader(client, topic, start, receiver_queue_size=500)
    try:
        yield bare._reader  # noqa: SLF001 - raw messages need less time
    finally:
        with contextlib.suppress(_pulsar.PulsarException):
            bare.close()


def _just_after(mark: EntryPlace) -> pulsar.MessageId:
    """Return the id to start after; the entry number -1 starts at the first entry of a ledger."""
    return pulsar.MessageId(-1, mark.ledger, mark.entry, -1)
