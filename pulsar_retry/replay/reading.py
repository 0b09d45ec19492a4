"""Reads dead letters without consuming them, and finds the codecs of their payloads."""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Collection, Container, Generator, Iterator
from itertools import takewhile
from typing import Any, NamedTuple

import _pulsar
import pulsar
from pulsar import Client as BareClient

from pulsar_retry.admin.client import AdminClient
from pulsar_retry.admin.position import Position
from pulsar_retry.admin.transport import NotShownError
from pulsar_retry.consumer.handoff.writer_schemas import WriterSchemas
from pulsar_retry.errors import PulsarRetryError
from pulsar_retry.replay.ack_state import AckState, EntryPlace, Log, Surveyed, cursor_of
from pulsar_retry.runtime.upstream import has_message
from pulsar_retry.wire.payloads import PLAIN, PayloadCodec, codec_of, unknown_codec

#: Seconds to wait for a message that is known to be stored.
_PATIENCE = 30.0
#: If the broker has sent all messages: how often nothing comes until none counts as on its way.
#: That is so if the last one is in chunks of which some were never published.
_QUIET_LOOKS = 5
#: How often another reader looks for entries that do not come: many may be encrypted. It always
#: looks for more entries than this in a row.
_MOST_LOOKS = 100
#: How many messages a reader has fetched at most; less if it only looks.
_QUEUE, _LOOK_QUEUE = 500, 20
#: Milliseconds after which the broker is asked why nothing comes.
_LULL_MS = 500
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


#: Why an entry cannot be read, in words.
CANNOT_BE_READ = "encrypted or incomplete"

#: Gets the places of entries that cannot be read; see `read_after`.
Unreadable = Callable[[str, EntryPlace], object]


def read_letters(
    client: pulsar.Client,
    admin: AdminClient,
    partitions: list[str],
    subscription: str | None = None,
    unreadable: Unreadable = lambda _topic, _place: None,
    *,
    after: Position | None = None,
) -> Generator[LetterInPlace, None, None]:
    """Yield the current messages of *partitions*, one partition after the other, unchanged.

    Args:
        client: Reads.
        admin: Asks what there is to read.
        partitions: Full names.
        subscription: Leave out messages that this subscription has acknowledged, except in batches
            that are not completely acknowledged, of which the broker reports none.
        unreadable: Called with the partition and place of each entry that is left out because it
            cannot be read; see `read_after`.
        after: Leave out this message and those before it; its partition says in which partition.
    """
    for number, topic in enumerate(partitions):
        begin = None
        if after is not None and number <= max(0, after.partition):
            if number < after.partition:
                continue
            begin = after
        log, done = log_and_acks(admin, topic, subscription)
        mark = done.mark if begin is None else max(done.mark, EntryPlace.of(begin).before)

        def skipped(place: EntryPlace, topic: str = topic, done: AckState = done) -> None:
            if not done.is_acknowledged(place):
                unreadable(topic, place)

        for raw, position in read_after(client, admin, topic, mark, log, skipped=skipped):
            if begin is not None and position <= begin:
                continue
            if not done.is_acknowledged(EntryPlace.of(position)):
                yield LetterInPlace(raw, topic, position)


def log_and_acks(admin: AdminClient, topic: str, subscription: str | None) -> tuple[Log, AckState]:
    """Return what the broker stores of a partition, and what a subscription has acknowledged.

    Without a subscription nothing is acknowledged, and messages leave with their ledgers.
    """
    stats = admin.topics.internal_stats(topic)
    log = Log.read(stats)
    cursor = None if subscription is None else cursor_of(stats, subscription)
    return log, AckState.of_nothing(log) if cursor is None else AckState.read(cursor, log)


def read_after(
    client: pulsar.Client,
    admin: AdminClient,
    topic: str,
    mark: EntryPlace,
    log: Log,
    *,
    skipped: Callable[[EntryPlace], object] = lambda _place: None,
) -> Generator[tuple[Any, Position], None, None]:
    """Yield the raw messages of a partition after *mark*, up to the end of *log*.

    Entries that cannot be read are left out: they are encrypted, or chunks of a message that was
    not published completely. A broker that expires messages moves every reader past them, although
    they may be kept: where entries do not come, another reader looks for them, and reads on.

    A *mark* with the entry number -1 starts at the first entry of its ledger. At the end, *skipped*
    is called with the place of each entry that is left out.

    Raises:
        pulsar.Timeout: a message does not come, although it is stored.
    """
    if log.last.entry < 0 or mark >= log.last:
        return
    end = log.end
    missed: list[EntryPlace] = []
    looks, goes_on = 0, True

    def passes_over(gap: list[EntryPlace], until: EntryPlace) -> bool:
        nonlocal looks
        if not gap or (looks >= _MOST_LOOKS and (len(gap) <= _MOST_LOOKS or mark == begin)):
            return False
        looks += 1
        with contextlib.closing(
            _read(client, admin, topic, mark, log, queue=_LOOK_QUEUE)
        ) as another:
            return next((place for *_, place in another if place > mark), until) < until

    while goes_on:
        goes_on, begin = False, mark
        # What did not come may be chunks of a message that is to come.
        start = missed[0].before if missed else mark
        with contextlib.closing(_read(client, admin, topic, start, log)) as reading:
            for raw, position, place in reading:
                if place <= begin:
                    continue
                now_missed = _missed(missed, raw, place, mark, log)
                gap = [] if now_missed is missed else [each for each in now_missed if each > mark]
                if passes_over(gap, place):
                    goes_on = True
                    break
                missed, mark = now_missed, place
                yield raw, position
            else:
                rest = [*takewhile(lambda each: each < end, log.places(mark))]
                goes_on = passes_over(rest, end)
    for each in (*missed, *rest):
        skipped(each)


def _read(
    client: pulsar.Client,
    admin: AdminClient,
    topic: str,
    mark: EntryPlace,
    log: Log,
    *,
    queue: int = _QUEUE,
) -> Generator[tuple[Any, Position, EntryPlace], None, None]:
    """Yield what one reader gets of a partition after *mark*, with the places of the entries.

    If a batch is at *mark*, it comes, too.
    """
    name = f"pulsar-retry-{uuid.uuid4().hex[:12]}"
    start = pulsar.MessageId(-1, mark.ledger, mark.entry, -1)
    with reader_of(client, topic, start, name, queue) as reader:
        came, quiet = time.monotonic(), 0
        while True:
            try:
                if not has_message(reader):
                    break
                raw = reader.read_next(_LULL_MS)
            except (_pulsar.Timeout, _pulsar.NotConnected):
                is_sent, is_done = _progress(admin, topic, name, mark, log)
                quiet = quiet + 1 if is_sent and _answers(client, topic) else 0
                if is_done or quiet >= _QUIET_LOOKS:
                    break
                if time.monotonic() - came > _PATIENCE:
                    raise
                continue
            came, quiet = time.monotonic(), 0
            position = position_of(raw)
            place = EntryPlace.of(position)
            if place > log.last:
                break
            yield raw, position, place


def _missed(
    before: list[EntryPlace], raw: Any, place: EntryPlace, mark: EntryPlace, log: Log
) -> list[EntryPlace]:
    """Return the entries that are left out: *before*, and from *mark* to *raw* at *place*."""
    is_next = place == (mark.ledger, mark.entry + 1)
    if place == mark or (is_next and not before):
        return before
    first = first_of(raw)
    if is_next and first == place:
        return before
    passed = takewhile(lambda each: each < place, log.places(mark))
    return [each for each in (*before, *passed) if each < first]


def position_of(raw: Any) -> Position:
    """Return the position of a raw message, or of the last chunk of a chunked one."""
    it = raw.message_id()
    return Position(it.ledger_id(), it.entry_id(), it.partition(), it.batch_index())


def entry_place_of(raw: Any) -> EntryPlace:
    """Return the place of the entry of a raw message, or of the last chunk of a chunked one."""
    return EntryPlace.of(position_of(raw))


def read_places(
    client: pulsar.Client,
    admin: AdminClient,
    seen: Surveyed,
    places: Collection[EntryPlace] | None = None,
    unreadable: list[EntryPlace] | None = None,
    *,
    others: Container[EntryPlace] = (),
) -> Iterator[Any]:
    """Yield the raw messages of a partition at *places*, acknowledged or not.

    The place of a message in chunks is that of its last chunk. It can be read only from its first
    chunk, which may be before all *places*. So the reading begins at the first entry that may be a
    chunk of it: one that was unacknowledged in the survey *seen*, and is not one of *others*.

    Without *places*, all that were unacknowledged are read. *unreadable* gets those that cannot be.
    """
    open_ = list(seen.acks.unacknowledged(seen.log))
    wanted = set(open_ if places is None else places)
    if not wanted:
        return
    missed: list[EntryPlace] = []
    first = min(wanted)
    begin = min(first, next((each for each in open_ if each not in others), first)).before
    log = seen.log.until(max(wanted))
    for raw, position in read_after(client, admin, seen.topic, begin, log, skipped=missed.append):
        if EntryPlace.of(position) in wanted:
            yield raw
    if unreadable is not None:
        unreadable += wanted.intersection(missed)


def first_of(raw: Any) -> EntryPlace:
    """Return the place of the entry of a raw message, or of the first chunk of a chunked one."""
    return EntryPlace.of(Position.of_first(raw.message_id()))


def first_chunk(admin: AdminClient, topic: str, place: EntryPlace, log: Log) -> EntryPlace | None:
    """Return the place of the first chunk of the message that has a chunk at *place*.

    That is *place* if the message is not in chunks, and None if the broker has deleted the chunk.
    """
    later = admin.subscriptions.entry(topic, Position(*place))
    if later.chunk == 0:
        return place
    for ledger, entries in reversed(log.until(place).ledgers):
        for entry in reversed(range(entries)):
            earlier = admin.subscriptions.entry(topic, Position(ledger, entry))
            if (earlier.uuid, earlier.chunk) == (later.uuid, 0):
                return EntryPlace(ledger, entry)
    return None


def _progress(
    admin: AdminClient, topic: str, name: str, mark: EntryPlace, log: Log
) -> tuple[bool, bool]:
    """Tell whether a reader was sent all entries after *mark*, and whether it is done with them.

    pulsar-client acknowledges what it cannot decrypt, for the reader only. The broker may send it
    the entry at *mark*, too, which nobody acknowledges.
    """
    for reader, cursor in admin.topics.internal_stats(topic)["cursors"].items():
        if reader.startswith(name):
            is_sent = EntryPlace.parse(cursor["readPosition"]) > log.last
            acks = AckState.read(cursor, log)
            left = AckState.of(max(mark, acks.mark), acks.ranges).backlog(log)
            return is_sent, not left
    return False, False


def _answers(client: pulsar.Client, topic: str) -> bool:
    """Tell whether the broker answers on the connection on which messages come.

    Its answer comes after the messages that it had sent before, also in a slow network.
    """
    try:
        with reader_of(client, topic, pulsar.MessageId.latest):
            return True
    except _pulsar.PulsarException:
        return False


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
                    yield LetterInPlace(raw, topic, position_of(raw))


def read_one(
    client: pulsar.Client, admin: AdminClient, partitions: list[str], message_id: str
) -> LetterInPlace | None:
    """Return the message of a topic with an id, as it is printed; None if it does not exist.

    Without a batch index in the id, it is the first message of a batch.

    Raises:
        ConfigError: *message_id* is not a message id.
        PulsarRetryError: the message cannot be read.
    """
    asked = Position.parse(message_id)
    topic = partitions[asked.partition] if 0 <= asked.partition < len(partitions) else partitions[0]
    place = EntryPlace.of(asked)
    log = Log.read(admin.topics.internal_stats(topic))
    if not log.has(place):
        return None
    try:
        first = first_chunk(admin, topic, place, log) or place
    except NotShownError:  # its first chunk may be anywhere
        first = log.first
    reading = read_after(client, admin, topic, first.before, log.until(place))
    batch = [LetterInPlace(raw, topic, at) for raw, at in reading if EntryPlace.of(at) == place]
    if not batch:
        raise PulsarRetryError(f"the letter {message_id} cannot be read: it is {CANNOT_BE_READ}")
    return next((each for each in batch if asked.batch in {-1, each.position.batch}), None)


@contextlib.contextmanager
def reader_of(
    client: pulsar.Client,
    topic: str,
    start: pulsar.MessageId | _pulsar.MessageId,
    name: str | None = None,
    queue: int = _QUEUE,
) -> Iterator[Any]:
    """Yield a raw reader of one partition. It has no durable subscription that would remain.

    It leaves out messages that it cannot decrypt: pulsar-client 3.13 writes beyond its memory if it
    gets them as they are and they are in chunks. The name of its subscription begins with *name*.
    It fetches at most *queue* messages ahead.
    """
    bare = BareClient.create_reader(
        client,
        topic,
        start,
        receiver_queue_size=queue,
        subscription_role_prefix=name,
        crypto_failure_action=pulsar.ConsumerCryptoFailureAction.DISCARD,
    )
    try:
        yield bare._reader  # raw messages need less time
    finally:
        with contextlib.suppress(_pulsar.PulsarException):
            bare.close()


class LetterCodecs:
    """Finds the codec of each letter. Each schema is read once. Thread-safe."""

    def __init__(self, client: pulsar.Client) -> None:
        """Start without known schemas; *client* asks the broker."""
        self._writer_schemas = WriterSchemas(client)
        self._known: dict[Any, PayloadCodec] = {}

    def of(self, raw: Any) -> PayloadCodec:
        """Return the codec of a raw message. May ask the broker, and block. Never raises.

        If the schema cannot be had, the codec raises when it is used.
        """
        try:
            schema = self._writer_schemas.of(raw)
        except pulsar.PulsarException as error:
            return unknown_codec("unknown", f"its schema cannot be had from the broker: {error}")
        if schema is None:
            return PLAIN
        codec = self._known.get(schema)
        if codec is None:
            info = schema.schema_info()
            codec = self._known[schema] = codec_of(info.schema_type().name, info.schema())
        return codec
