"""Reading a part of a partition into record batches, in a worker."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import Any

import attrs
import pulsar
import pyarrow as pa

from pulsar_retry.wire.properties import message_id_text
from pulsar_retry_spark.clients import lease
from pulsar_retry_spark.connection import ClusterConnection
from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.source.patience import (
    BROKER_IS_AWAY,
    PATIENCE,
    has_message,
    patiently,
    refusals_of,
)
from pulsar_retry_spark.source.positions import MessagePosition
from pulsar_retry_spark.source.rows import RowBuffer
from pulsar_retry_spark.source.topics import Partition

#: A record batch has at most so many rows, or bytes of payload and a row.
_BATCH_ROWS = 5_000
_BATCH_BYTES = 8 << 20

#: Entries before a start that are read again: the chunks of one message may lie on both sides of
#: it, with other messages between them, and only who has read the first chunk gets the message.
LOOK_BACK = 16

#: Milliseconds between two looks at what keeps a message that is there from coming.
_WAIT = 1_000

#: How many of them in a row find a message and get none, before it is taken for a part of a chunked
#: message of which no more will come, where that may be.
_UNCERTAIN_LOOKS = 10


@attrs.frozen
class Piece:
    """A part of a partition. Picklable.

    Attributes:
        partition: The partition.
        after: The last message that is not read any more; None: from the start.
        end: The last message to read.
        first: Where *after* is None: the first message to read, if *whole*; None: not known.
        since: Where *after* is None: milliseconds since 1970 to start at, as far as the broker
            finds it.
        until: Publish time in milliseconds after which nothing more is read.
        certain: Whether *end* is known to be a message.
        whole: Whether it is an error if *first* or *end* is not there any more.
    """

    partition: Partition
    after: MessagePosition | None
    end: MessagePosition
    first: MessagePosition | None = None
    since: int | None = None
    until: int | None = None
    certain: bool = True
    whole: bool = False


def read_batches(
    connection: ClusterConnection, piece: Piece, schema: pa.Schema, queue: int
) -> Iterator[pa.RecordBatch]:
    """Read *piece* as record batches of *schema*, some columns of `source_rows.SCHEMA`.

    Raises:
        PulsarSourceError: messages are missing or do not come, or the broker refuses.
    """
    constants = {"kind": piece.partition.kind, "topic": piece.partition.topic}
    rows = RowBuffer(schema, constants)
    number = piece.partition.number
    count = size = 0
    with refusals_of(f"{piece.partition.name} was not read"), lease(connection) as cached:
        for position, raw in messages(cached.client, piece, queue):
            rows.add(raw, _id_text(position, number, raw))
            count += 1
            size += raw.length()
            if count == _BATCH_ROWS or size >= _BATCH_BYTES:
                yield rows.take()
                count = size = 0
        if count:
            yield rows.take()


def _id_text(position: tuple[int, int, int], number: int, raw: Any) -> str:
    """Return a message's id as Java prints it, by the shorter way where there is one."""
    ledger, entry, batch = position
    if batch < 0:  # it may have been chunked
        return message_id_text(raw.message_id())
    return f"{ledger}:{entry}:{number}:{batch}"


def messages(
    client: pulsar.Client, piece: Piece, queue: int
) -> Generator[tuple[tuple[int, int, int], Any], None, None]:
    """Give the raw messages of *piece* with their positions, as plain tuples.

    Raises:
        PulsarSourceError: messages are missing, or do not come.
        pulsar.PulsarException: the broker was not reached, or refuses.
    """
    reader = patiently(lambda: _open(client, piece, queue))
    try:
        yield from _between(reader._reader, piece)  # noqa: SLF001 - its wrapper costs by the row
    finally:
        reader.close()


def _open(client: pulsar.Client, piece: Piece, queue: int) -> pulsar.Reader:
    start = pulsar.MessageId.earliest
    if piece.after is not None:
        back = piece.after.back(LOOK_BACK)
        start = pulsar.MessageId(-1, back.ledger, back.entry, -1)
    reader = client.create_reader(
        piece.partition.name,
        start,
        receiver_queue_size=queue,
        start_message_id_inclusive=True,
    )
    if piece.after is None and piece.since is not None:
        try:
            reader.seek(piece.since)
        except BaseException:
            reader.close()
            raise
    return reader


def _between(reader: Any, piece: Piece) -> Iterator[tuple[tuple[int, int, int], Any]]:
    after: tuple[int, int, int] | None = piece.after
    first, end, until = piece.first if piece.whole else None, piece.end, piece.until
    read = reader.read_next
    position = None
    while position != end:
        try:
            raw = read(_WAIT)
        except pulsar.Timeout:
            raw = _awaited(reader, piece)
        if raw is None:
            break
        message_id = raw.message_id()
        position = (message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())
        if until is not None and raw.publish_timestamp() > until:
            return
        if position > end:
            break
        if first is not None and position > first:
            raise _deleted(piece, first)
        first = None
        # A reader that has reconnected begins anew with the producer's batch that it was in.
        if after is None or position > after:
            after = position
            yield position, raw
    # Where a time says where to begin, there may be nothing from there on.
    if piece.whole and position != end and (piece.since is None or position is not None):
        raise _deleted(piece, end)


def _deleted(piece: Piece, position: MessagePosition) -> PulsarSourceError:
    return PulsarSourceError(
        "DATA_LOSS",
        f"{piece.partition.name} has no message {position} any more: the broker has deleted it "
        "unread. fail_on_data_loss=false goes on with what is left",
    )


def _awaited(reader: Any, piece: Piece) -> Any:
    """Wait for the next raw message as long as there is one, and return it; None: there is none."""
    give_up_at = time.monotonic() + PATIENCE
    looks = 0
    while (more := _has_more(reader)) is not False:
        # A broker that is away says nothing about what is there, however long it takes.
        looks = 0 if more is None else looks + 1
        try:
            return reader.read_next(_WAIT)
        except pulsar.Timeout:
            if looks >= _UNCERTAIN_LOOKS and not piece.certain:
                return None
            if time.monotonic() > give_up_at:
                break
    else:
        return None
    raise PulsarSourceError(
        "TIMEOUT",
        f"{piece.partition.name} has messages, but none has come for {PATIENCE:g} s",
    )


def _has_more(reader: Any) -> bool | None:
    """Tell whether there are messages; None: the broker is away, and the reader will reconnect."""
    try:
        more = has_message(reader)
    except BROKER_IS_AWAY:
        return None
    return more if reader.is_connected() else None  # it may have answered from memory
