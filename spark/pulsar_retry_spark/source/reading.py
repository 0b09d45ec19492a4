"""Read a part of a partition into record batches, in a worker."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

import _pulsar
import attrs
import pulsar
import pyarrow as pa

from pulsar_retry.native.loading import native_rows
from pulsar_retry.runtime.upstream import has_message
from pulsar_retry.wire.properties import message_id_text
from pulsar_retry_spark.clients import CachedClient, lease
from pulsar_retry_spark.connection import ClusterConnection
from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.source.patience import (
    BROKER_IS_AWAY,
    PATIENCE,
    patiently,
    refusals_of,
)
from pulsar_retry_spark.source.positions import END, MessagePosition
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

#: After so many checks in a row that find a message but do not get it, it is looked at: it may be
#: encrypted. If `Piece.certain` is false, it else counts as an incomplete chunked message, and
#: reading ends.
_UNCERTAIN_LOOKS = 10

#: Milliseconds to wait for an entry that is looked at: before other entries, and at the end, where
#: nothing comes if it is a chunk.
_PATIENCE_MS, _LAST_PATIENCE_MS = 30_000, 5_000

#: How often entries that do not come are looked at: brokers' own entries in a topic are such, too.
_MOST_LOOKS = 100

_ENCRYPTED = (
    "{} has encrypted letters: set crypto.private_key_file to the key that decrypts them, or "
    "fail_on_data_loss=false to leave them out"
)

_log = logging.getLogger("pulsar_retry")


@attrs.frozen
class Piece:
    """A part of a partition. Picklable.

    Attributes:
        partition: The partition.
        after: The last message before the piece; None to start at the beginning.
        end: The last message to read.
        first: Without *after*: the first message, which must exist if *whole*; None if not known.
        since: The publish time in milliseconds before which messages are left out.
        until: The publish time in milliseconds after which reading stops.
        certain: Whether *end* is known to be a message.
        strict: Whether it is an error if a message is lost, or can't be decrypted.
    """

    partition: Partition
    after: MessagePosition | None
    end: MessagePosition
    first: MessagePosition | None = None
    since: int | None = None
    until: int | None = None
    certain: bool = True
    strict: bool = True

    @property
    def whole(self) -> bool:
        """Whether it is an error if *first* or *end* no longer exists."""
        return self.strict and self.certain

    @property
    def from_start(self) -> bool:
        """Whether the piece begins with the first message of its partition."""
        return self.after is None and self.since is None


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
            yield from _one_by_one(cached, piece, queue, rows)
            return
        for taken in _many(module, cached, piece, queue):
            yield Block(taken, constants).take()


def _one_by_one(
    client: CachedClient, piece: Piece, queue: int, rows: RowBuffer
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


def _many(module: Any, client: CachedClient, piece: Piece, queue: int) -> Iterator[Any]:
    """Read *piece* with the extension module, as `_between` does; yield what `Block` needs."""
    first, unread = piece.first if piece.whole else None, Unread(client, piece)
    after, number = piece.after and tuple(piece.after), piece.partition.number
    times = [-1 if each is None else each for each in (piece.since, piece.until)]
    end = tuple(min(each, _LAST_NUMBER) for each in piece.end)  # `END` is greater
    limits = (_BATCH_ROWS, _BATCH_BYTES)
    reading = module.Reading(number, after, first, end, *times, PROPERTIES, *limits)
    reader = patiently(lambda: _open(client, piece, queue))
    raw = reader._reader  # noqa: SLF001 - as in `messages`
    try:
        status = _WAITING
        while status == _WAITING:
            status, result = reading.read(raw, _READ_TIMEOUT_MS)
            if result == _TIMEOUT:
                message = _awaited(client, raw, piece, unread)
                if message is None:
                    break
                status = reading.add(message)
            elif result != _OK:
                raise getattr(_pulsar, _pulsar.Result(result).name, pulsar.PulsarException)
            for gap in reading.gaps():
                unread.look(*gap)
            if status == _FULL:
                yield reading.take()
                status = _WAITING
    finally:
        reader.close()
    if status == _FIRST_IS_MISSING and first is not None:
        raise _deleted(piece, first)
    if status != _TOO_LATE:
        _check_end(client, piece, reading.position())
    if reading.rows():
        yield reading.take()
    unread.warn()


def _id_text(position: tuple[int, int, int], number: int, raw: Any) -> str:
    """Return a message's id as Java prints it; messages in batches take a quicker way."""
    ledger, entry, batch = position
    if batch < 0:  # the message may be chunked
        return message_id_text(raw.message_id())
    return f"{ledger}:{entry}:{number}:{batch}"


def messages(
    client: CachedClient, piece: Piece, queue: int
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


def _open(client: CachedClient, piece: Piece, queue: int) -> pulsar.Reader:
    start: pulsar.MessageId | _pulsar.MessageId = pulsar.MessageId.earliest
    if piece.after is not None:
        back = piece.after.back(LOOK_BACK)
        start = pulsar.MessageId(-1, back.ledger, back.entry, -1)
    reader = client.reader(piece.partition.name, start, queue)
    if piece.after is None and piece.since is not None:
        reader.seek(piece.since)
    return reader


def _between(
    client: CachedClient, reader: Any, piece: Piece
) -> Iterator[tuple[tuple[int, int, int], Any]]:
    after: tuple[int, int, int] | None = piece.after
    first, end, until = piece.first if piece.whole else None, piece.end, piece.until
    read, unread, since = reader.read_next, Unread(client, piece), piece.since or 0
    position = None
    while position != end:
        try:
            raw = read(_READ_TIMEOUT_MS)
        except pulsar.Timeout:
            raw = _awaited(client, reader, piece, unread)
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
            # Otherwise no entry lies between the two, and the id is not needed.
            if unread.gaps or position[1] > _next_entry(after, position):
                unread.look(after, position, _id_text(position, piece.partition.number, raw))
            after = position
            if raw.publish_timestamp() >= since:
                yield position, raw
    unread.warn()
    _check_end(client, piece, position)


def _next_entry(after: tuple[int, int, int] | None, position: tuple[int, int, int]) -> int:
    """Return the entry that follows one message, in the ledger of the next one at *position*."""
    return after[1] + 1 if after is not None and after[0] == position[0] else 0


@attrs.define
class Unread:
    """Entries of a piece that the broker has and pulsar-client does not deliver.

    They are encrypted, chunks of a message that is not complete, or markers of the broker's own:
    there is no other way to tell them apart than to look at them.

    Attributes:
        gaps: The last entries that did not come: the ledger, the first entry, and the one after the
            last. Those of one gap can be chunks of any later message.
    """

    _client: CachedClient
    _piece: Piece
    _entries: int = attrs.field(default=0, init=False)
    _looks: int = attrs.field(default=0, init=False)
    _encrypted: bool = attrs.field(default=False, init=False)
    gaps: deque[tuple[int, int, int]] = attrs.field(
        factory=lambda: deque(maxlen=_MOST_LOOKS), init=False
    )

    def look(
        self, after: tuple[int, int, int] | None, position: tuple[int, int, int], text: str
    ) -> None:
        """Look for entries between two messages that come one after the other.

        Args:
            after: The position of the first one; None if there is none.
            position: That of the second one.
            text: The id of the second one, which has that of its first chunk.

        Raises:
            PulsarSourceError: they are encrypted, and this is an error.
        """
        if after is None and not self._piece.from_start:
            return
        ledger, end, _ = position
        if ";" in text:
            chunk = MessagePosition(*map(int, text.split(":", 2)[:2]))
            self._forget(chunk)
            end = chunk.entry if chunk.ledger == ledger else 0
        begin = _next_entry(after, position)
        if begin >= end:
            return
        self._entries += end - begin
        self.gaps.append((ledger, begin, end))
        self._looks += 1
        if not self._encrypted and self._looks <= _MOST_LOOKS:
            self.is_encrypted(pulsar.MessageId(-1, ledger, end - 1, -1), _PATIENCE_MS)

    def _forget(self, first: MessagePosition) -> None:
        """Take back what was counted from a message's *first* chunk on: those were its chunks.

        Messages of other producers may lie between them, and come before it.
        """
        while self.gaps:
            ledger, begin, end = self.gaps[-1]
            if (ledger, end) <= (first.ledger, first.entry):
                break
            self.gaps.pop()
            kept = max(begin, first.entry) if ledger == first.ledger else begin
            self._entries -= end - kept
            if kept > begin:
                self.gaps.append((ledger, begin, kept))

    def is_encrypted(
        self, at: pulsar.MessageId | _pulsar.MessageId, patience: int = _LAST_PATIENCE_MS
    ) -> bool:
        """Return whether an entry is encrypted, and remember it; wait *patience* ms for it.

        Raises:
            PulsarSourceError: it is, and this is an error.
        """
        name = self._piece.partition.name
        if patiently(lambda: _is_encrypted(self._client, name, at, patience)):
            self._encrypted = True
            if self._piece.strict:
                raise PulsarSourceError("UNREADABLE", _ENCRYPTED.format(name))
        return self._encrypted

    def warn(self) -> None:
        """Log a warning if entries were left out."""
        if self._entries or self._encrypted:
            what = "encrypted" if self._encrypted else "incomplete, or encrypted in chunks"
            name = self._piece.partition.name
            count = self._entries or "some"
            _log.warning("%s: %s entries were left out: they are %s", name, count, what)


def _is_encrypted(
    client: CachedClient, name: str, at: pulsar.MessageId | _pulsar.MessageId, patience: int
) -> bool:
    """Return whether an entry of a partition is a message that can't be decrypted.

    The entry has to be the last one of several: pulsar-client 3.13 writes beyond its memory if it
    gets all chunks of an encrypted message as they are. Without the first chunk, it drops them.
    """
    action = pulsar.ConsumerCryptoFailureAction.CONSUME
    with closing(client.reader(name, at, crypto_failure_action=action)) as reader:
        if not has_message(reader):  # this call also moves a reader to the last message
            return False
        try:
            context = reader.read_next(patience).encryption_context()
        except pulsar.Timeout:
            return False
        return context is not None and bool(context.is_decryption_failed())


def _check_end(client: CachedClient, piece: Piece, position: tuple[int, int, int] | None) -> None:
    """Check that reading ended at the end of *piece*, if it has to; *position* is the last one."""
    if not piece.whole or position == piece.end:
        return
    if piece.after is None and piece.since is not None and piece.first is None:
        # A stream has begun behind the end: all before was published earlier, or is gone.
        oldest = message_at(client, piece.partition.name, pulsar.MessageId.earliest, _PATIENCE_MS)
        if oldest is not None and (oldest <= piece.end or oldest == END):
            return
    raise _deleted(piece, piece.end)


def message_at(
    client: CachedClient,
    name: str,
    at: _pulsar.MessageId,
    patience: int,
    since: int | None = None,
) -> MessagePosition | None:
    """Return the message at one of the ends of a partition, or the first since a publish time.

    None if there is none; `END` if it does not come for *patience* milliseconds: the entry is a
    chunk, or encrypted.
    """
    with closing(client.reader(name, at)) as reader:
        if since is not None:
            reader.seek(since)
        # This call also moves a reader to the last message.
        if not has_message(reader):
            return None
        try:
            return MessagePosition.of(reader.read_next(patience).message_id())
        except pulsar.Timeout:
            return END


def _deleted(piece: Piece, position: MessagePosition) -> PulsarSourceError:
    return PulsarSourceError(
        "DATA_LOSS",
        f"{piece.partition.name} has no message {position} any more: the broker has deleted it "
        "before it was read. Set fail_on_data_loss=false to continue with the remaining messages",
    )


def _awaited(client: CachedClient, reader: Any, piece: Piece, unread: Unread) -> Any:
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
            if looks >= _UNCERTAIN_LOOKS:
                looks = 0
                if unread.is_encrypted(pulsar.MessageId.latest) or not piece.certain:
                    return None
            if time.monotonic() > give_up_at:
                break
    else:
        return None
    raise PulsarSourceError(
        "TIMEOUT",
        f"{piece.partition.name} has messages, but none has arrived for {PATIENCE:g} s",
    )


def _answers(client: CachedClient, piece: Piece) -> bool:
    """Tell whether the broker answers on the connection on which messages come.

    Its answer comes after the messages that it had sent before, also in a slow network.
    """
    try:
        client.client.create_reader(piece.partition.name, pulsar.MessageId.latest).close()
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
