"""Looking at dead letters without consuming any."""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, NamedTuple

import _pulsar
import pulsar
from pulsar import Client as BareClient

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.position import Position
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Log

#: Milliseconds to wait for a message that is known to be there.
_PATIENCE_MS = 30_000
#: Milliseconds in which every partition is looked at once.
_TAIL_MS = 200


class LetterInPlace(NamedTuple):
    """A message where it is.

    Attributes:
        raw: The `_pulsar.Message`.
        topic: The full name of its partition.
        position: Where in it.
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
    """Yield what is in *partitions* now, one after the other, and leave it all as it is.

    Args:
        client: Reads.
        admin: Knows what is there.
        partitions: Full names.
        subscription: Leave out what this one has acknowledged, as far as the broker tells: single
            messages of a batch that is not done with are not left out.
    """
    for topic in partitions:
        yield from _read_partition(client, admin, topic, subscription)


def _read_partition(
    client: pulsar.Client, admin: AdminClient, topic: str, subscription: str | None
) -> Iterator[LetterInPlace]:
    stats = admin.topics.internal_stats(topic)
    log = Log.read(stats)
    cursor = stats["cursors"].get(subscription) if subscription is not None else None
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
            if done is None or not _is_done(done, place):
                yield LetterInPlace(raw, topic, position)


def tail_letters(client: pulsar.Client, partitions: list[str]) -> Iterator[LetterInPlace]:
    """Yield what arrives in *partitions* from now on, for ever, and consume nothing."""
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
    """Return one message; None: it is not there.

    Args:
        client: Reads.
        partitions: The topic's.
        message_id: As it is printed; without the batch's number the first message of a batch.

    Raises:
        ConfigError: that is no message id.
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
def reader_of(client: pulsar.Client, topic: str, start: pulsar.MessageId) -> Iterator[Any]:
    """Give a raw reader of one partition, which leaves no trace when it is closed."""
    bare = BareClient.create_reader(client, topic, start, receiver_queue_size=500)
    try:
        yield bare._reader  # noqa: SLF001 - raw messages cost less
    finally:
        with contextlib.suppress(_pulsar.PulsarException):
            bare.close()


def _just_after(mark: EntryPlace) -> pulsar.MessageId:
    """Return the id after which to begin; before the first entry of a ledger there is none."""
    return pulsar.MessageId(-1, mark.ledger, mark.entry, -1)


def _is_done(state: AckState, place: EntryPlace) -> bool:
    if place <= state.mark:
        return True
    at = bisect_right(state.ranges, (place.ledger, place.entry + 1)) - 1
    if at < 0:
        return False
    each = state.ranges[at]
    return each.ledger == place.ledger and each.first <= place.entry <= each.last
