"""Read a part of a partition into record batches, in a worker."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import Any

import _pulsar
import attrs
import pulsar
import pyarrow as pa

from pulsar_retry.native.loading import native_rows
from pulsar_retry.runtime.upstream import has_message
from pulsar_retry.wire.properties import message_id_text
from pulsar_retry_spark.clients import lease
from pulsar_retry_spark.connection import ClusterConnection
from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.source.patience import (
    BROKER_IS_AWAY,
    PATIENCE,
    patiently,
    refusals_of,
)
from pulsar_retry_spark.source.positions import MessagePosition
from pulsar_retry_spark.source.rows import PROPERTIES, Block, RowBuffer
from pulsar_retry_spark.source.topics import Partition

#: A record batch is full at this many rows, or at this many bytes of payload.
_BATCH_ROWS = 5_000
_BATCH_BYTES = 8 << 20

#: The greatest number in the extension module.
_LAST_NUMBER = 2**63 - 1

#: The statuses of the extension module's `Reading`, and results of pulsar-client.
_WAITING, _FULL, _TOO_LATE, _FIRST_IS_MISSING = 1, 0, 4, 5
_OK, _TIMEOUT = int(_pulsar.Result.Ok), int(_pulsar.Result.Timeout)

#: Entries before the start that are read again: the chunks of one message may lie on both sides of
#: the start, with other messages in between, and a reader needs the first chunk to get the message.
LOOK_BACK = 16

#: Milliseconds between two checks while an existing message does not come.
_READ_TIMEOUT_MS = 1_000

#: If `Piece.certain` is false: after so many checks in a row that find a message but do not get it,
#: the message counts as an incomplete chunked message, and reading ends.
_UNCERTAIN_LOOKS = 10


@attrs.frozen
class Piece:
    """A part of a partition. Picklable.

    Attributes:
        partition: The partition.
        after: The last message before the piece; None to start at the beginning.
        end: The last message to read.
        first: Without *after*: the first message, which must exist if *whole*; None if not known.
        until: The publish time in milliseconds after which reading stops.
        certain: Whether *end* is known to be a message.
        whole: Whether it is an error if *first* or *end* no longer exists.
    """

    partition: Partition
    after: MessagePosition | None
    end: MessagePosition
    first: MessagePosition | None = None
    until: int | None = None
    certain: bool = True
    whole: bool = False


def read_batches(
    connection: ClusterConnection, piece: Piece, queue: int
) -> Iterator[pa.RecordBatch]:
    """Read *piece* as record batches; the reader may fetch *queue* messages ahead.

    Raises:
        PulsarSourceError: messages are missing or do not come, or the broker refuses.
    """
    constants = {"kind": piece.partition.kind, "topic": piece.partition.topic}
    module = native_rows().module
    with refusals_of(f"{piece.partition.name} could not be read"), lease(connection) as cached:
        if module is None:
            rows = RowBuffer(constants)
            yield from _one_by_one(cached.client, piece, queue, rows)
            return
        for taken in _many(module, cached.client, piece, queue):
            yield Block(taken, constants).take()


def _one_by_one(
    client: pulsar.Client, piece: Piece, queue: int, rows: RowBuffer
) -> Iterator[pa.RecordBatch]:
    """Read *piece* in Python."""
    number = piece.partition.number
    count = size = 0
    for position, raw in messages(client, piece, queue):
        rows.add(raw, _id_text(position, number, raw))
        count += 1
        size += raw.length()
        if count == _BATCH_ROWS or size >= _BATCH_BYTES:
            yield rows.take()
            count = size = 0
    if count:
        yield rows.take()


def _many(module: Any, client: pulsar.Client, piece: Piece, queue: int) -> Iterator[Any]:
    """Read *piece* with the extension module, as `_between` does; yield what `Block` needs."""
    first, until = piece.first if piece.whole else None, piece.until
    after, number = piece.after and tuple(piece.after), piece.partition.number
    until = -1 if until is None else until
    end = tuple(min(each, _LAST_NUMBER) for each in piece.end)  # `END` is greater
    limits = (_BATCH_ROWS, _BATCH_BYTES)
    reading = module.Reading(number, after, first, end, until, PROPERTIES, *limits)
    reader = patiently(lambda: _open(client, piece, queue))
    raw = reader._reader  # noqa: SLF001 - as in `messages`
    try:
        status = _WAITING
        while status == _WAITING:
            status, result = reading.read(raw, _READ_TIMEOUT_MS)
            if result == _TIMEOUT:
                message = _awaited(client, raw, piece)
                if message is None:
                    break
                status = reading.add(message)
            elif result != _OK:
                raise getattr(_pulsar, _pulsar.Result(result).name, pulsar.PulsarException)
            if status == _FULL:
                yield reading.take()
                status = _WAITING
    finally:
        reader.close()
    if status == _FIRST_IS_MISSING and first is not None:
        raise _deleted(piece, first)
    if status != _TOO_LATE:
        _check_end(piece, reading.position())
    if reading.rows():
        yield reading.take()


def _id_text(position: tuple[int, int, int], number: int, raw: Any) -> str:
    """Return a message's id as Java prints it; messages in batches take a quicker way."""
    ledger, entry, batch = position
    if batch < 0:  # the message may be chunked
        return message_id_text(raw.message_id())
    return f"{ledger}:{entry}:{number}:{batch}"


def messages(
    client: pulsar.Client, piece: Piece, queue: int
) -> Generator[tuple[tuple[int, int, int], Any], None, None]:
    """Yield the raw messages of *piece* with their positions, which are plain tuples.

    Raises:
        PulsarSourceError: messages are missing, or do not come.
        pulsar.PulsarException: the broker was not reached, or refuses.
    """
    reader = patiently(lambda: _open(client, piece, queue))
    try:
        yield from _between(client, reader._reader, piece)  # noqa: SLF001 - the wrapper costs time per row
    finally:
        reader.close()


def _open(client: pulsar.Client, piece: Piece, queue: int) -> pulsar.Reader:
    start: pulsar.MessageId | _pulsar.MessageId = pulsar.MessageId.earliest
    if piece.after is not None:
        back = piece.after.back(LOOK_BACK)
        start = pulsar.MessageId(-1, back.ledger, back.entry, -1)
    return client.create_reader(
        piece.partition.name,
        start,
        receiver_queue_size=queue,
        start_message_id_inclusive=True,
    )


def _between(
    client: pulsar.Client, reader: Any, piece: Piece
) -> Iterator[tuple[tuple[int, int, int], Any]]:
    after: tuple[int, int, int] | None = piece.after
    first, end, until = piece.first if piece.whole else None, piece.end, piece.until
    read = reader.read_next
    position = None
    while position != end:
        try:
            raw = read(_READ_TIMEOUT_MS)
        except pulsar.Timeout:
            raw = _awaited(client, reader, piece)
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
        # After a reconnection, a reader starts again at the beginning of its current batch.
        if after is None or position > after:
            after = position
            yield position, raw
    _check_end(piece, position)


def _check_end(piece: Piece, position: tuple[int, int, int] | None) -> None:
    """Check that reading ended at the end of *piece*, if it has to; *position* is the last one."""
    if piece.whole and position != piece.end:
        raise _deleted(piece, piece.end)


def _deleted(piece: Piece, position: MessagePosition) -> PulsarSourceError:
    return PulsarSourceError(
        "DATA_LOSS",
        f"{piece.partition.name} has no message {position} any more: the broker has deleted it "
        "before it was read. Set fail_on_data_loss=false to continue with the remaining messages",
    )


def _awaited(client: pulsar.Client, reader: Any, piece: Piece) -> Any:
    """Wait for the next raw message while one exists, and return it; None if there is none."""
    give_up_at = time.monotonic() + PATIENCE
    looks = 0
    while (more := _has_more(reader)) is not False:
        # While the broker is away, nothing is known about its messages, however long it takes.
        is_known = more is not None and (piece.certain or _answers(client, piece))
        looks = looks + 1 if is_known else 0
        try:
            return reader.read_next(_READ_TIMEOUT_MS)
        except pulsar.Timeout:
            if looks >= _UNCERTAIN_LOOKS and not piece.certain:
                return None
            if time.monotonic() > give_up_at:
                break
    else:
        return None
    raise PulsarSourceError(
        "TIMEOUT",
        f"{piece.partition.name} has messages, but none has arrived for {PATIENCE:g} s",
    )


def _answers(client: pulsar.Client, piece: Piece) -> bool:
    """Tell whether the broker answers on the connection on which messages come.

    Its answer comes after the messages that it had sent before, also in a slow network.
    """
    try:
        client.create_reader(piece.partition.name, pulsar.MessageId.latest).close()
    except BROKER_IS_AWAY:
        return False
    return True


def _has_more(reader: Any) -> bool | None:
    """Return whether there are messages; None if the broker is away (the reader reconnects)."""
    try:
        more = has_message(reader)
    except BROKER_IS_AWAY:
        return None
    return more if reader.is_connected() else None  # it may have answered from memory
