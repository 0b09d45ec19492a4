"""What a reader does while a broker is silent or away: with a reader of the test's own making.

The extension module waits by the same function; `source/test_source_faults.py` and
`source/test_source_planning.py` have it read from a real broker.
"""

from __future__ import annotations

import itertools
from unittest.mock import Mock

import attrs
import pulsar
import pytest

from pulsar_retry.runtime.upstream import has_message
from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.source import patience as source_patience
from pulsar_retry_spark.source import reading
from pulsar_retry_spark.source.patience import last_message_id, patiently
from pulsar_retry_spark.source.positions import END, MessagePosition
from pulsar_retry_spark.source.reading import Piece, messages
from pulsar_retry_spark.source.subscription import ReadingSubscription
from pulsar_retry_spark.source.topics import Partition

PARTITION = Partition("t", "t", "retry")


@attrs.frozen
class Message:
    """A message and its id; if it has chunks, with the first one's."""

    number: int
    first: int | None = None
    size: int = 1

    def __str__(self):
        chunks = [each for each in (self.first, self.number) if each is not None]
        return ";".join(f"(7,{each},-1,-1)" for each in chunks)

    def message_id(self):
        return self

    def ledger_id(self):
        return 7

    def entry_id(self):
        return self.number

    def batch_index(self):
        return -1

    def publish_timestamp(self):
        return 1

    def length(self):
        return self.size


@attrs.define
class Reader:
    """Gives numbers and raises errors, one after the other; at the end there is nothing more.

    It is the client that opens it, too.
    """

    script: list[int | Exception]
    connected: bool = True
    silent: int = 0

    @property
    def _reader(self):
        return self

    @property
    def client(self):
        return self

    def create_reader(self, *_):  # only to see whether there is an answer
        if self.silent:
            self.silent -= 1
            raise pulsar.Timeout
        return self

    def reader(self, _topic, _start, queue=None, **_):
        return Reader([]) if queue is None else self  # the first only looks at what does not come

    def read_next(self, _):
        if not self.script or isinstance(self.script[0], pulsar.NotConnected):
            raise pulsar.Timeout
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return Message(step)

    def has_message_available(self):
        if self.script and isinstance(self.script[0], pulsar.NotConnected):
            raise self.script.pop(0)
        return bool(self.script)

    def get_last_message_id(self):
        return Message(-1)

    def is_connected(self):
        return self.connected

    def close(self):
        pass


def read(*script, end=2, position=None, silent=0, **piece):
    """Return the numbers of the messages that come."""
    wanted = Piece(PARTITION, None, position or MessagePosition(7, end), **piece)
    reader = Reader(list(script), silent=silent)
    return [position[1] for position, _ in messages(reader, wanted, 1)]


def test_a_broker_that_is_away_ends_no_reading():
    """Neither where the end is known nor where it may be a part of a message."""
    away = [pulsar.NotConnected() for _ in range(3 * reading._UNCERTAIN_LOOKS)]
    assert [0, 1, 2] == read(0, *away, 1, 2)
    assert [0, 1, 2] == read(0, *away, 1, 2, certain=False)


def test_a_part_of_a_message_ends_reading_where_it_may_be_one():
    """The broker has to say time and again that there is something, and give nothing."""
    silence = [pulsar.Timeout() for _ in range(2 * reading._UNCERTAIN_LOOKS)]
    assert [0] == read(0, *silence, 1, 2, certain=False)
    assert [0, 1, 2] == read(0, *silence, 1, 2)


def test_a_network_that_stalls_ends_no_reading():
    """Messages are on their way while the broker does not answer, whatever was known before."""
    looks = 2 * reading._UNCERTAIN_LOOKS
    silence = [pulsar.Timeout() for _ in range(looks)]
    assert [0, 1, 2] == read(0, *silence, 1, 2, certain=False, silent=looks)


def test_silence_where_there_is_a_message_is_an_error(monkeypatch):
    """And no end of the rows."""
    monkeypatch.setattr(reading, "PATIENCE", 0)
    with pytest.raises(
        PulsarSourceError, match=r"\[PULSAR_SOURCE_TIMEOUT\] t has messages, but no"
    ):
        read(0, *(pulsar.Timeout() for _ in range(9)), 1, 2)


def test_a_reader_that_begins_anew_gives_each_message_once():
    """pulsar-client's does, after it has reconnected in the middle of a batch."""
    assert [0, 1, 2] == read(0, 1, 0, 1, 2)


def test_a_reader_that_cannot_be_closed_costs_no_row(monkeypatch):
    """Its connection breaks when all is read, as when somebody terminates the topic."""

    def fails(_):
        raise pulsar.NotConnected

    monkeypatch.setattr(Reader, "close", fails)
    assert [0, 1, 2] == read(0, 1, 2)


def test_a_consumer_that_cannot_be_closed_keeps_none_from_it():
    """Its broker has gone; the acknowledgements of the others are sent when they are closed."""
    consumers = [Mock(**{"close.side_effect": pulsar.NotConnected}), Mock()]
    subscription = ReadingSubscription(None, "s", strict=True)
    subscription._consumers.update(enumerate(consumers))
    subscription.close()
    assert [1, 1] == [each.close.call_count for each in consumers]


@pytest.mark.parametrize("ask", [has_message, last_message_id])
def test_an_answer_of_a_lost_connection_is_none(ask):
    """pulsar-client says that there is nothing, whatever there is."""
    assert not ask(Reader([]))
    with pytest.raises(pulsar.NotConnected):
        ask(Reader([], connected=False))


def test_patience_ends(monkeypatch):
    """With what pulsar-client has said last; other errors end it at once."""
    monkeypatch.setattr(source_patience, "PATIENCE", 0.1)
    monkeypatch.setattr(source_patience, "_PAUSE", 0)
    calls = itertools.count()

    def fail(error):
        next(calls)
        raise error

    with pytest.raises(pulsar.ConnectError):
        patiently(lambda: fail(pulsar.ConnectError()))
    assert next(calls) > 1
    before = next(calls)
    with pytest.raises(pulsar.AuthorizationError):
        patiently(lambda: fail(pulsar.AuthorizationError()))
    assert before + 2 == next(calls)


def test_what_is_answered_from_memory_is_no_answer():
    """A reader that has lost its connection knows of messages that it can't get."""
    assert reading._has_more(Reader([1])) is True
    assert reading._has_more(Reader([1], connected=False)) is None


def test_a_reader_that_was_closed():
    """The error is pulsar-client's own."""
    with pytest.raises(pulsar.AlreadyClosed):
        read(0, pulsar.AlreadyClosed())


def test_a_first_message_that_is_gone():
    """If it has to be there, this is an error; so is an end that is gone."""
    assert [1, 2] == read(1, 2, first=MessagePosition(7, 1))
    with pytest.raises(PulsarSourceError, match=r"DATA_LOSS\] t has no message 7:0:-1"):
        read(1, 2, first=MessagePosition(7, 0))
    with pytest.raises(PulsarSourceError, match=r"DATA_LOSS\] t has no message 7:2:-1"):
        read(0, 1, 3)
    assert [0, 1] == read(0, 1, 3, strict=False)


def test_an_end_that_is_not_known():
    """It is behind every message."""
    assert [0, 1, 2] == read(0, 1, 2, position=END, certain=False)


def test_chunks_that_came_before_other_messages_are_not_left_out(caplog):
    """They count until their message comes; what came before its first chunk goes on to count."""
    bounds = reading.Bounds(Reader([]), Piece(PARTITION, None, END, strict=False), 1)
    for entry, text in [(3, "7:3:-1"), (5, "7:5:-1"), (6, "7:1:-1;7:6:-1")]:
        assert bounds.is_row((7, entry, -1), 1, text)
    bounds.finish()
    assert "t: 1 entries were left out" in caplog.text


@attrs.define
class Forgetful(Reader):
    """Passes over some messages, as a reader does where the broker expires them meanwhile."""

    opened: int = 0
    kept: list[int] = attrs.Factory(list)

    def reader(self, _topic, start, queue=None, **_):
        after = -1 if start is pulsar.MessageId.earliest else start._msg_id.entry_id()
        left = [each for each in self.kept if each >= after]
        if queue is None:
            return Reader(left)
        self.opened += 1
        return Reader(self.script if self.opened == 1 else left)


SILENCE = [pulsar.Timeout() for _ in range(reading._UNCERTAIN_LOOKS + 1)]


@pytest.mark.parametrize("passed", [[3, 4], [0, 4], [5], [0, *SILENCE], SILENCE])
def test_messages_that_a_reader_passes_over_are_read_by_another(passed, monkeypatch):
    """At the start, in between, and at the end: they are still there."""
    monkeypatch.setattr(reading, "LOOK_BACK", 1)
    end, first = MessagePosition(7, 4), MessagePosition(7, 0)
    reader = Forgetful([*passed], kept=[0, 1, 2, 3, 4, 5])
    wanted = Piece(PARTITION, None, end, first=first)
    assert [0, 1, 2, 3, 4] == [position[1] for position, _ in messages(reader, wanted, 1)]


def test_messages_that_every_reader_passes_over_are_lost(monkeypatch):
    """This is an error, and no loop."""
    looks = {2: [0, 1], 3: [1]}  # with and without a queue
    monkeypatch.setattr(Reader, "reader", lambda _, *given, **__: Reader([*looks[len(given)]]))
    wanted = Piece(PARTITION, None, MessagePosition(7, 1))
    with pytest.raises(PulsarSourceError, match=r"DATA_LOSS\] t: the broker passes over"):
        list(messages(Reader([]), wanted, 1))


@attrs.define
class Stored(Reader):
    """Has messages: a reader gets those of which it gets each chunk."""

    kept: list[Message] = attrs.Factory(list)
    seeks_to: int = 0
    queues: list[int] = attrs.Factory(list)

    def reader(self, _topic, start, queue=None, **more):
        if "crypto_failure_action" in more:
            return Reader([])  # nothing is encrypted
        if queue is not None:
            self.queues.append(queue)
        reader = Stored([], kept=self.kept, seeks_to=self.seeks_to)
        reader.begin(0 if start is pulsar.MessageId.earliest else start._msg_id.entry_id())
        return reader

    def begin(self, at):
        firsts = [each.number if each.first is None else each.first for each in self.kept]
        self.script = [each for first, each in zip(firsts, self.kept, strict=True) if first >= at]

    def seek(self, _):
        self.begin(self.seeks_to)

    def read_next(self, _):
        if not self.script:
            raise pulsar.Timeout
        return self.script.pop(0)


def test_large_messages_behind_small_ones_are_large(monkeypatch):
    """It is the last ones that say how many fill the memory."""
    monkeypatch.setattr(reading, "_BATCH_BYTES", 100)
    sizes = [1] * 1000 + [50] * 20
    topic = Stored([], kept=[Message(number, size=size) for number, size in enumerate(sizes)])
    wanted = Piece(PARTITION, None, MessagePosition(7, len(sizes) - 1))
    rows = [position[1] for position, _ in messages(topic, wanted, 1000)]
    assert list(range(len(sizes))) == rows
    assert 2 * reading._AHEAD == topic.queues[-1]


def test_a_reader_that_begins_anew_gets_messages_of_which_chunks_have_come(monkeypatch):
    """Also where other chunks hide theirs: nothing else would show that they do not come."""
    monkeypatch.setattr(reading, "_BATCH_BYTES", 1)
    monkeypatch.setattr(reading, "LOOK_BACK", 0)
    kept = [Message(1), Message(2), Message(5, first=0), Message(6, first=3)]
    topic, wanted = Stored([], kept=kept), Piece(PARTITION, None, MessagePosition(7, 6))
    assert [1, 2, 5, 6] == [position[1] for position, _ in messages(topic, wanted, 1000)]
    kept = [Message(2, first=0), Message(5, first=1), Message(6, first=3)]
    topic, wanted = Stored([], kept=kept), Piece(PARTITION, None, MessagePosition(7, 6))
    assert [2, 5, 6] == [position[1] for position, _ in messages(topic, wanted, 1000)]


def test_a_clock_that_is_wrong_costs_no_row(monkeypatch):
    """The broker takes its time for that of a place behind all messages."""
    monkeypatch.setattr(reading, "LOOK_BACK", 1)
    topic = Stored([], kept=[Message(each) for each in (0, 1, 2, 4)], seeks_to=9)
    wanted = Piece(PARTITION, MessagePosition(7, 1), MessagePosition(7, 4))
    assert [2, 4] == [position[1] for position, _ in messages(topic, wanted, 1)]
