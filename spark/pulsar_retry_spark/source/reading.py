"""Read a part of a partition into record batches, in a worker."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import suppress
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
from pulsar_retry_spark.source.options import SourceOptions
from pulsar_retry_spark.source.patience import (
    BROKER_IS_AWAY,
    PATIENCE,
    closed,
    patiently,
    refusals_of,
)
from pulsar_retry_spark.source.positions import END, MessagePosition
from pulsar_retry_spark.source.rows import PROPERTIES, RowBuffer, block
from pulsar_retry_spark.source.topics import Partition

#: A record batch is full at this many rows, or at this many bytes of payload.
_BATCH_ROWS = 5_000
_BATCH_BYTES = 8 << 20

#: How many full record batches a reader may fetch ahead: a thousand large messages would fill the
#: memory of a worker.
_AHEAD = 8

#: The greatest number in the extension module.
_LAST_NUMBER = 2**63 - 1

#: Results of pulsar-client.
_OK, _TIMEOUT = int(_pulsar.Result.Ok), int(_pulsar.Result.Timeout)

#: Entries before the start that are read again: the chunks of one message may lie on both sides of
#: the start, with other messages in between, and a reader needs the first chunk to get the message.
#: If something does not come, everything of some minutes is read again: see `Bounds._widens`.
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

#: Milliseconds by which a message may be stored later than others that were published after it. The
#: broker looks for a publish time as if all were in order, and would pass over some others.
_LATE_MS = 600_000

#: How often entries that do not come are looked at: brokers' own entries in a topic are such, too.
#: More entries than this together are always looked at.
_MOST_LOOKS = 100

#: How often a reader is opened at one place because the last one has passed over messages there.
_MOST_TRIES = 10

_ENCRYPTED = (
    "{} has encrypted letters: set crypto.private_key_file to the key that decrypts them, or "
    "fail_on_data_loss=false to leave them out"
)

#: Ledger, entry, and number in the batch: a `MessagePosition`, as a plain tuple.
Position = tuple[int, int, int]

_log = logging.getLogger("pulsar_retry")


@attrs.frozen
class Piece:
    """A part of a partition. Picklable.

    Attributes:
        partition: The partition.
        after: The last message before the piece; None to start at the beginning.
        end: The last message to read; `END` for all that comes.
        first: Without *after*: the first message, which must exist if *whole*; None if not known.
        since: The publish time in milliseconds before which messages are left out.
        until: The publish time in milliseconds after which reading stops.
        certain: Whether *end* is known to be a message.
        strict: Whether it is an error if a message is lost, or can't be decrypted.
    """

    partition: Partition
    after: MessagePosition | None = None
    end: MessagePosition = END
    first: MessagePosition | None = None
    since: int | None = None
    until: int | None = None
    certain: bool = True
    strict: bool = True

    @classmethod
    def of(
        cls,
        partition: Partition,
        options: SourceOptions,
        after: MessagePosition | None = None,
        end: MessagePosition = END,
    ) -> Piece:
        """Return a piece of *partition* for a query with *options*."""
        strict = options.fail_on_data_loss
        return cls(partition, after, end, since=options.since, strict=strict)

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
            yield block(taken, constants)


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
    """Read *piece* with the extension module; yield what `block` needs.

    It takes messages by itself while they plainly follow one another within the piece.
    """
    times = [-1 if each is None else each for each in (piece.since, piece.until)]
    end = tuple(min(each, _LAST_NUMBER) for each in piece.end)  # `END` is greater
    limits = (_BATCH_ROWS, _BATCH_BYTES)
    reading = module.Reading(piece.partition.number, end, *times, PROPERTIES, *limits)
    bounds = Bounds(client, piece, queue)
    while not bounds.done:
        with closed(bounds.opened()) as reader:
            raw = reader._reader
            while bounds.goes_on:
                result, bounds.after = reading.read(raw, _READ_TIMEOUT_MS, bounds.after)
                if result == _TIMEOUT:
                    if (message := bounds.awaited(raw)) is not None:
                        reading.hold(message)
                elif result != _OK:
                    raise getattr(_pulsar, _pulsar.Result(result).name, pulsar.PulsarException)
                if (held := reading.held()) is not None:
                    reading.settle(bounds.is_row(*held))
                rows, is_full = reading.rows()
                if is_full and not bounds.narrows(rows):
                    yield reading.take()
    bounds.finish()
    rows, _ = reading.rows()
    if rows:
        yield reading.take()


def _id_text(position: Position, number: int, raw: Any) -> str:
    """Return a message's id as Java prints it; messages in batches take a quicker way."""
    ledger, entry, batch = position
    if batch < 0:  # the message may be chunked
        return message_id_text(raw.message_id())
    return f"{ledger}:{entry}:{number}:{batch}"


def messages(
    client: CachedClient, piece: Piece, queue: int
) -> Generator[tuple[Position, Any], None, None]:
    """Yield the raw messages of *piece* with their positions, which are plain tuples.

    Raises:
        PulsarSourceError: messages are missing, or do not come.
        pulsar.PulsarException: the broker was not reached, or refuses.
    """
    bounds, number = Bounds(client, piece, queue), piece.partition.number
    count = size = 0
    while not bounds.done:
        with closed(bounds.opened()) as reader:
            read = reader._reader.read_next  # the wrapper costs time per row
            while bounds.goes_on:
                try:
                    raw = read(_READ_TIMEOUT_MS)
                except pulsar.Timeout:
                    raw = bounds.awaited(reader._reader)
                    if raw is None:
                        break
                message_id = raw.message_id()
                at = (message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())
                if bounds.is_row(at, raw.publish_timestamp(), _id_text(at, number, raw)):
                    yield at, raw
                    count, size = count + 1, size + raw.length()
                if size >= _BATCH_BYTES:
                    bounds.narrows(count)
                    count = size = 0
    bounds.finish()


def last_of(client: CachedClient, piece: Piece, queue: int) -> MessagePosition | None:
    """Return the last complete message of *piece*; None if there is none.

    Raises:
        PulsarSourceError: messages are missing, or do not come.
        pulsar.PulsarException: the broker was not reached, or refuses.
    """
    last = deque((position for position, _ in messages(client, piece, queue)), maxlen=1)
    return MessagePosition(*last[0]) if last else None


class Bounds:
    """Decides which messages of a piece are rows, and where it ends. Nothing else decides that.

    Attributes:
        after: The last message that came, in the order of the partition.
        done: Whether the piece has been read.
        goes_on: Whether the present reader can go on: false too if it has passed over messages, as
            it does where the broker has expired them while it read. (Those that are kept are still
            there.) Then another reader is opened after the last message.
    """

    def __init__(self, client: CachedClient, piece: Piece, queue: int) -> None:
        """Begin at the start of *piece*; a reader may fetch *queue* messages ahead."""
        self._client = client
        self._piece = piece
        self._queue = queue
        self._unread = Unread(client, piece)
        self._first = piece.first if piece.whole else None
        self._opened_at: Position | None = None
        self._chunked: Position | None = None
        self._is_wide = False
        self._tries = 0
        self.after: Position | None = piece.after
        self.done = False
        self.goes_on = True

    def opened(self) -> pulsar.Reader:
        """Open a reader that gives what follows the last message.

        Raises:
            PulsarSourceError: many readers have passed over the same messages.
        """
        self._tries = self._tries + 1 if self._opened_at == self.after else 1
        self._opened_at = self.after
        if self._tries > _MOST_TRIES:
            name = self._piece.partition.name
            text = f"{name}: the broker passes over messages after {self.after} that it has"
            raise PulsarSourceError("DATA_LOSS", text)
        self.goes_on = True
        # A reader that has been closed may have had chunks of messages whose others are to come.
        self._is_wide = self._is_wide or self._chunked is not None or self._unread.entries > 0
        return patiently(self._open)

    def _open(self) -> pulsar.Reader:
        start: pulsar.MessageId | _pulsar.MessageId = pulsar.MessageId.earliest
        if self.after is not None:
            back = MessagePosition(*self.after).back(LOOK_BACK)
            start = pulsar.MessageId(-1, back.ledger, back.entry, -1)
        name = self._piece.partition.name
        reader = self._client.reader(name, start, self._queue)
        if self.after is None and self._piece.since is not None:
            _seek(reader, self._piece.since)
        elif self.after is not None and self._is_wide:
            with suppress(pulsar.Timeout):  # nothing is left that comes
                since = reader.read_next(_LAST_PATIENCE_MS).publish_timestamp()
                found = message_at(self._client, name, start, _LAST_PATIENCE_MS, since)
                if found is not None and found <= self.after:  # else a producer's clock is wrong
                    _seek(reader, since)
        return reader

    def is_row(self, position: Position, published: int, text: str) -> bool:
        """Return whether the next message is a row.

        Args:
            position: Its position.
            published: Its publish time in milliseconds.
            text: Its id, which has that of its first chunk.

        Raises:
            PulsarSourceError: messages before it are lost or encrypted, and this is an error.
        """
        piece, first = self._piece, self._first
        # After a reconnection, a reader starts again at the beginning of its current batch.
        if self.after is not None and position <= self.after:
            return False
        gap = self._unread.gap(self.after, position, text)
        is_behind_first = first is not None and position > first
        if (gap is not None or is_behind_first) and self._has_passed_over(position):
            return False
        if gap is not None and gap[1] < gap[2] and self._widens():
            return False
        if position > piece.end or (piece.until is not None and published > piece.until):
            self._end()
            return False
        if first is not None and is_behind_first:
            raise deleted(piece.partition.name, f"has no message {first}")
        if gap is not None:
            self._check_kept(position[0])
            self._unread.count(gap)
        if ";" in text:
            self._chunked = position
        self._first = None
        self.after = position
        if position == piece.end:
            self._end()
        return published >= (piece.since or 0)

    def awaited(self, reader: Any) -> Any:
        """Wait for the next raw message while one exists, and return it; None if there is none.

        Raises:
            PulsarSourceError: there is one, but none comes; or encrypted ones are an error.
        """
        piece = self._piece
        give_up_at = time.monotonic() + PATIENCE
        looks = 0
        while (more := _has_more(reader)) is not False:
            # While the broker is away, nothing is known about its messages, however long it takes.
            is_known = more is not None and (piece.certain or _answers(self._client, piece))
            looks = looks + 1 if is_known else 0
            try:
                return reader.read_next(_READ_TIMEOUT_MS)
            except pulsar.Timeout:
                if is_known and self._widens():
                    return None
                if looks >= _UNCERTAIN_LOOKS:
                    looks = 0
                    if self._has_passed_over(END):
                        return None
                    if self._unread.is_encrypted(pulsar.MessageId.latest) or not piece.certain:
                        self._unread.at_end = True
                        break
                if time.monotonic() > give_up_at:
                    name = piece.partition.name
                    raise PulsarSourceError(
                        "TIMEOUT",
                        f"{name} has messages, but none has arrived for {PATIENCE:g} s",
                    ) from None
        self._end()
        return None

    def finish(self) -> None:
        """Log what was left out, and check that the end of the piece was read, if it has to be.

        Raises:
            PulsarSourceError: the end is lost, and this is an error.
        """
        piece = self._piece
        self._unread.warn()
        if not piece.whole or self.after == piece.end:
            return
        if piece.after is None and piece.since is not None and piece.first is None:
            # A stream has begun behind the end: all before was published earlier, or is gone.
            name = piece.partition.name
            oldest = message_at(self._client, name, pulsar.MessageId.earliest, _PATIENCE_MS)
            if oldest is not None and (oldest <= piece.end or oldest == END):
                return
        raise deleted(piece.partition.name, f"has no message {piece.end}")

    def _check_kept(self, ledger: int) -> None:
        """Check, at the start of a *ledger*, that no ledger before it was deleted meanwhile.

        Brokers delete the oldest first, so nothing is lost if that of the last message is there.

        Raises:
            PulsarSourceError: it is not, and this is an error.
        """
        piece, after = self._piece, self.after
        # A stream's planner checks the start. A chunked message may be only in part in its ledger.
        if not piece.strict or after is None or after in (piece.after, self._chunked):
            return
        if after[0] != ledger:
            name, start = piece.partition.name, pulsar.MessageId(-1, after[0], 0, -1)
            oldest = patiently(lambda: message_at(self._client, name, start, _PATIENCE_MS))
            if oldest is not None and oldest != END and oldest.ledger != after[0]:
                last = MessagePosition(*after)
                raise deleted(name, f"does not have what came after {last}")

    def _end(self) -> None:
        self.done, self.goes_on = True, False

    def narrows(self, rows: int) -> bool:
        """Return whether the next reader fetches less ahead, as *rows* messages fill a batch."""
        if self._queue <= rows * _AHEAD:
            return False
        self._queue, self.goes_on = rows * _AHEAD, False
        return True

    def _widens(self) -> bool:
        """Return whether the next reader begins earlier, so that it may get what did not come.

        That may be chunks of a message whose first one was stored long before the others, with many
        messages of other producers in between.
        """
        if self._is_wide or self._opened_at is None:
            return False
        self._is_wide, self.goes_on = True, False
        return True

    def _has_passed_over(self, position: Position) -> bool:
        """Return whether another reader gets a message before *position* after the last one."""
        if not self._unread.may_look(self.after, position):
            return False
        name, since = self._piece.partition.name, None
        start: pulsar.MessageId | _pulsar.MessageId = pulsar.MessageId.earliest
        if self.after is None:
            since = self._piece.since
        else:
            start = pulsar.MessageId(-1, self.after[0], self.after[1] + 1, -1)
        found = patiently(lambda: message_at(self._client, name, start, _LAST_PATIENCE_MS, since))
        self.goes_on = found is None or found >= position
        return not self.goes_on


@attrs.define
class Unread:
    """Entries of a piece that the broker has and pulsar-client does not deliver.

    They are encrypted, chunks of a message that is not complete, or markers of the broker's own:
    there is no other way to tell them apart than to look at them.

    Attributes:
        at_end: Whether the piece ends with such entries.
        entries: How many there are, as far as they are counted.
    """

    _client: CachedClient
    _piece: Piece
    at_end: bool = attrs.field(default=False, init=False)
    entries: int = attrs.field(default=0, init=False)
    _looks: int = attrs.field(default=0, init=False)
    _encrypted: bool = attrs.field(default=False, init=False)
    # The last entries that did not come. Those of one gap can be chunks of any later message.
    _gaps: deque[tuple[int, int, int]] = attrs.field(
        factory=lambda: deque(maxlen=_MOST_LOOKS), init=False
    )

    def gap(
        self, after: Position | None, position: Position, text: str
    ) -> tuple[int, int, int] | None:
        """Return which entries lie between two messages that come one after the other.

        Args:
            after: The position of the first one; None if there is none.
            position: That of the second one.
            text: The id of the second one, which has that of its first chunk.

        Returns:
            The ledger, the first entry, and the one after the last; None if there can be none. In
            another ledger than that of the first one, there may be none.
        """
        if after is None and not self._piece.from_start:
            return None
        ledger, end, _ = position
        begin = after[1] + 1 if after is not None and after[0] == ledger else 0
        is_other = after is not None and after[0] != ledger
        if ";" in text:
            chunk = MessagePosition(*map(int, text.split(":", 2)[:2]))
            self._forget(chunk)
            end, is_other = (chunk.entry if chunk.ledger == ledger else 0), False
        return (ledger, begin, end) if begin < end or is_other else None

    def may_look(self, after: Position | None, position: Position) -> bool:
        """Return whether to look at what lies between two messages: not at every few entries."""
        self._looks += 1
        many = after is None or after[0] != position[0] or position[1] - after[1] > _MOST_LOOKS
        return many or self._looks <= _MOST_LOOKS

    def count(self, gap: tuple[int, int, int]) -> None:
        """Count entries that the broker has and that do not come.

        Raises:
            PulsarSourceError: they are encrypted, and this is an error.
        """
        ledger, begin, end = gap
        if begin >= end:
            return
        self.entries += end - begin
        self._gaps.append(gap)
        if not self._encrypted and self._looks <= _MOST_LOOKS:
            self.is_encrypted(pulsar.MessageId(-1, ledger, end - 1, -1), _PATIENCE_MS)

    def _forget(self, first: MessagePosition) -> None:
        """Take back what was counted from a message's *first* chunk on: those were its chunks.

        Messages of other producers may lie between them, and come before it.
        """
        while self._gaps:
            ledger, begin, end = self._gaps[-1]
            if (ledger, end) <= (first.ledger, first.entry):
                break
            self._gaps.pop()
            kept = max(begin, first.entry) if ledger == first.ledger else begin
            self.entries -= end - kept
            if kept > begin:
                self._gaps.append((ledger, begin, kept))

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
        if self.entries or self._encrypted or self.at_end:
            what = "encrypted" if self._encrypted else "incomplete, or encrypted in chunks"
            name = self._piece.partition.name
            count = self.entries or "some"
            _log.warning("%s: %s entries were left out: they are %s", name, count, what)


def _is_encrypted(
    client: CachedClient, name: str, at: pulsar.MessageId | _pulsar.MessageId, patience: int
) -> bool:
    """Return whether an entry of a partition is a message that can't be decrypted.

    The entry has to be the last one of several: pulsar-client 3.13 writes beyond its memory if it
    gets all chunks of an encrypted message as they are. Without the first chunk, it drops them.
    """
    action = pulsar.ConsumerCryptoFailureAction.CONSUME
    with closed(client.reader(name, at, crypto_failure_action=action)) as reader:
        if not has_message(reader):  # this call also moves a reader to the last message
            return False
        try:
            context = reader.read_next(patience).encryption_context()
        except pulsar.Timeout:
            return False
        return context is not None and bool(context.is_decryption_failed())


def message_at(
    client: CachedClient,
    name: str,
    at: pulsar.MessageId | _pulsar.MessageId,
    patience: int,
    since: int | None = None,
) -> MessagePosition | None:
    """Return the message at one of the ends of a partition, or where reading since a time begins.

    None if there is none; `END` if it does not come for *patience* milliseconds: the entry is a
    chunk, or encrypted.
    """
    with closed(client.reader(name, at)) as reader:
        if since is not None:
            _seek(reader, since)
        # This call also moves a reader to the last message.
        if not has_message(reader):
            return None
        try:
            return MessagePosition.of(reader.read_next(patience).message_id())
        except pulsar.Timeout:
            return END


def _seek(reader: pulsar.Reader, since: int) -> None:
    """Move a reader to the first message since a publish time, or to some messages before it."""
    reader.seek(max(1, since - _LATE_MS))


def deleted(name: str, what: str) -> PulsarSourceError:
    """Return the error of the partition *name*, in which something does not exist *any more*."""
    return PulsarSourceError(
        "DATA_LOSS",
        f"{name} {what} any more: the broker has deleted it before it was read. Set "
        "fail_on_data_loss=false to continue with the remaining messages",
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
