"""How a stream plans, acknowledges and notices what is lost, on a real broker without Spark.

`Micro` does what Spark does; `test_source_stream.py` shows that Spark does it.
"""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
from contextlib import closing

import pulsar
import pytest

from pulsar_retry.native.loading import Native
from pulsar_retry_spark.errors import PulsarSourceError
from pulsar_retry_spark.source import reading
from pulsar_retry_spark.source import stream as stream_module
from pulsar_retry_spark.source.batch import schema
from pulsar_retry_spark.source.source import FailureReader
from pulsar_retry_spark.source.subscription import ReadingSubscription
from support.spark.sourcing import Micro, forget, numbers
from support.waiting import eventually

NAME = "pulsar-failures"


@pytest.fixture
def micro(letters, monkeypatch):
    """Return a function that starts a stream; at the end all are closed."""
    monkeypatch.setattr(stream_module, "_POLL", 0)  # no pause, so that each look is one
    started = []

    def start(offset=None, **options):
        started.append(Micro(letters.options, offset, discovery__seconds="0", **options))
        return started[-1]

    yield start
    for each in started:
        each.kill()


@pytest.fixture
def backlog(admin, letters):
    """Return a function that tells how many entries of a topic are not acknowledged."""

    def backlog(topic=None):
        return admin.backlog(topic or letters.dead, NAME)

    return backlog


@pytest.fixture
def read_once(letters, micro):
    """Return a function that sends messages, has a stream read them, and ends it."""

    def read_once(*payloads):
        letters.send(*payloads)
        stream = micro()
        stream.run()
        stream.kill()
        return stream

    return read_once


@pytest.fixture
def read_and_deleted(read_once, micro, admin, backlog, letters):
    """Give a stream that has read two messages, which the broker has deleted, and not a third."""
    stream = read_once(*numbers(2))
    again = micro(stream.offset)
    again.plan()
    again.kill()
    eventually(lambda: backlog() == 0)
    forget(admin, letters, b"2")
    return stream


# -- offsets and limits -----------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3, 7])
def test_a_limit_holds_within_batches(letters, micro, rows):
    """A producer's batch may be larger than a micro-batch; each message is read once."""
    letters.send_batch(*numbers(10))
    letters.send(*numbers(10, 12))
    stream = micro(max_rows_per_batch=str(rows))
    batches = stream.run_all()
    assert numbers(12) == [each for batch in batches for each in batch]
    assert [rows] * (12 // rows) == [len(batch) for batch in batches][: 12 // rows]


def test_a_limit_is_shared(letters, micro, admin):
    """Each partition that is behind has its part, and no more than is allowed is read."""
    admin.create_partitioned_topic(letters.dead, 3)
    for partition in range(3):
        letters.send(*numbers(4), to=f"{letters.dead}-partition-{partition}")
    stream = micro(max_rows_per_batch="6")
    assert sorted(numbers(2) * 3) == sorted(stream.run())
    assert 3 == len(stream.offset)
    assert sorted(numbers(2, 4) * 3) == sorted(stream.run())


def test_a_limit_below_the_number_of_partitions_starves_none(letters, micro, admin):
    """They take turns."""
    admin.create_partitioned_topic(letters.dead, 3)
    for partition in range(3):
        letters.send(*numbers(3), to=f"{letters.dead}-partition-{partition}")
    stream = micro(max_rows_per_batch="1")
    batches = [stream.run() for _ in range(6)]
    assert [1] * 6 == [len(batch) for batch in batches]
    assert 3 == len(stream.offset)


def test_starting_at_the_end_leaves_out_what_is_there(letters, micro):
    """Even if the query is killed before anything came, and topics that come later are whole."""
    letters.send(*numbers(3))
    stream = micro(starting="latest")
    assert [] == stream.run()
    offset = stream.offset
    stream.kill()
    letters.send(*numbers(3, 5))
    stream = micro(offset, starting="latest")
    letters.send(b"new", to=letters.retry)
    assert {*numbers(3, 5), b"new"} == set(stream.run())


def test_starting_at_the_end_of_nothing_leaves_out_nothing(letters, micro):
    """No topic there yet: what comes is after the start."""
    stream = micro(starting="latest")
    assert [] == stream.run()
    letters.send(*numbers(2))
    assert numbers(2) == stream.run()


# -- what appears -----------------------------------------------------------------------------


def test_partitions_that_are_added_are_read_from_their_start(letters, micro, admin):
    """As are those of the topic that appears."""
    stream = micro()
    assert [] == stream.run()
    admin.create_partitioned_topic(letters.dead, 1)
    letters.send(b"a", to=f"{letters.dead}-partition-0")
    assert [b"a"] == stream.run()
    admin.call("POST", letters.dead.replace("://", "/") + "/partitions", 2)
    letters.send(b"b", to=f"{letters.dead}-partition-1")
    assert [b"b"] == stream.run()


def test_looking_creates_no_topic(micro, admin, namespace):
    """Not even the retry topic of a subscription that has not retried yet."""
    assert [] == micro().run()
    assert [] == admin.topics(namespace)


# -- acknowledgements -------------------------------------------------------------------------


def test_a_batch_that_was_read_in_part_is_kept(letters, micro, backlog):
    """Entries are acknowledged as wholes."""
    letters.send(b"first")
    letters.send_batch(*numbers(4))
    stream = micro(max_rows_per_batch="3")
    stream.run()
    stream.reader.commit(stream.offset)
    eventually(lambda: backlog() == 1)
    stream.run()
    stream.reader.commit(stream.offset)
    eventually(lambda: backlog() == 0)


def test_an_available_now_stream_ends_where_it_was_when_it_started(letters, micro):
    """Or it would never end while somebody writes."""
    letters.send(*numbers(3))
    stream = micro(max_rows_per_batch="2")
    stream.reader.prepareForTriggerAvailableNow()
    assert numbers(2) == stream.run()
    letters.send(*numbers(3, 6))
    letters.send(b"new", to=letters.retry)
    assert [[b"2"]] == stream.run_all()


def test_subscriptions_that_are_not_created_automatically(letters, micro, admin, namespace):
    """A batch needs none; a stream needs its own, which somebody has to create, and says so."""
    letters.send(b"a")
    admin.create_topic(letters.retry)
    allowed = {"allowAutoSubscriptionCreation": False}
    admin.set_namespace_policy(namespace, "autoSubscriptionCreation", allowed)

    assert [b"a"] == read_batch(letters)

    impatient = {"client__operation_timeout_seconds": "3"}
    with pytest.raises(PulsarSourceError, match=f"subscription {NAME!r} .*create it"):
        micro(**impatient).run()
    for each in (letters.dead, letters.retry):
        path = f"{each.replace('://', '/')}/subscription/{NAME}"
        admin.call("PUT", path, {"ledgerId": -1, "entryId": -1, "partitionIndex": -1})
    assert [b"a"] == micro().run()


# -- chunks -----------------------------------------------------------------------------------


def test_a_stream_that_ends_with_a_chunk_reads_all_of_the_message(letters, micro):
    """The last entry is no message by itself."""
    large = bytes(12_000_000)
    letters.send(b"before", large)
    stream = micro()
    assert [b"before", large] == stream.run()
    assert [] == stream.run()
    letters.send(b"after")
    assert [b"after"] == stream.run()


def test_a_message_whose_chunks_are_still_coming_is_read_when_it_is_whole(letters, micro):
    """A plan in between stops before it."""
    large = bytes(60_000_000)
    letters.send(b"before")
    sending = threading.Thread(target=letters.send, args=[large])
    stream = micro()
    sending.start()
    read = []
    while sending.is_alive():
        read += stream.run()
    read += [each for batch in stream.run_all() for each in batch]
    assert [b"before", large] == read


def test_chunks_on_both_sides_of_an_offset_are_one_message(letters, micro):
    """With another producer's message between them, at which a micro-batch may end."""
    letters.send(b"before")
    stream = micro()
    assert [b"before"] == stream.run()
    large = bytes(12_000_000)
    (first_and_last,) = letters.send(large)
    ledger, entry = first_and_last.split(";")[0].split(":")[:2]
    # As if the stream had stopped at the first chunk, for another's message there.
    stream.offset = {letters.dead: f"{ledger}:{entry}:-1"}
    assert [large] == stream.run()


@pytest.fixture(params=[True, False], ids=["native", "python"])
def reads(request, monkeypatch):
    """Have the extension module read, or Python."""
    if not request.param:
        monkeypatch.setattr(reading, "native_rows", lambda: Native(None, "a test"))


@pytest.fixture
def interleaved(letters, proxy):
    """Return a function that sends a message in chunks, and others of another producer meanwhile.

    It returns the message, its last entry, and how many others there are.
    """

    def interleaved():
        large, ids, count = bytes(12_000_000), queue.SimpleQueue(), 0
        with closing(pulsar.Client(proxy.url)) as other:
            producer = other.create_producer(
                letters.dead, batching_enabled=False, chunking_enabled=True
            )
            proxy.delay = 0.005  # so that others come between
            producer.send_async(large, lambda _, sent: ids.put(sent))
            while ids.empty():
                letters.send(b"small")
                count += 1
        return large, ids.get(), count

    return interleaved


@pytest.mark.usefixtures("reads")
def test_messages_between_chunks(letters, interleaved, caplog):
    """They come before the chunked message, and no warning says that its chunks were left out."""
    large, _, count = interleaved()
    letters.send(b"last")

    read = read_batch(letters)

    assert [*[b"small"] * count, b"last"] == [each for each in read if each != large]
    assert 0 < read.index(large)
    assert "left out" not in caplog.text


@pytest.mark.usefixtures("reads")
@pytest.mark.parametrize("is_last", [True, False])
def test_chunks_far_apart_on_both_sides_of_an_offset_are_one_message(
    letters, interleaved, micro, is_last
):
    """However many messages of others are between them; a quiet topic may end with the last one."""
    large, sent, count = interleaved()
    assert count > 2 * reading.LOOK_BACK
    after = [] if is_last else [b"after"]
    letters.send(*after)
    stream = micro()
    # As if the stream had stopped just before the last chunk.
    stream.offset = {letters.dead: f"{sent.ledger_id()}:{sent.entry_id() - 1}:-1"}
    assert [large, *after] == [each for each in stream.run() if each != b"small"]


@pytest.fixture
def torso(letters, admin, monkeypatch, proxy):
    """Give a topic at whose end there are some chunks of a message, whose producer has died."""
    monkeypatch.setattr(reading, "_UNCERTAIN_LOOKS", 3)
    proxy.delay = 0.005  # so that it cannot send all of it before a busy machine kills it
    letters.send(b"before")
    code = """if True:
        import sys, pulsar
        producer = pulsar.Client(sys.argv[1]).create_producer(
            sys.argv[2], batching_enabled=False, chunking_enabled=True
        )
        producer.send(bytes(200_000_000))"""
    command = [sys.executable, "-c", code, proxy.url, letters.dead]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as child:
        eventually(lambda: admin.stats(letters.dead)["msgInCounter"] > 2)
        child.kill()
    eventually(lambda: not admin.stats(letters.dead)["publishers"][1:])


@pytest.mark.usefixtures("torso")
def test_a_message_that_will_never_be_whole_is_no_row(letters, micro):
    """It ends neither a stream nor a batch, and what comes after it is read."""
    stream = micro()
    assert [b"before"] == stream.run()
    assert [] == stream.run()
    assert [b"before"] == read_batch(letters)
    letters.send(b"after")
    assert [b"after"] == stream.run()
    assert [b"before", b"after"] == read_batch(letters)


def read_batch(letters):
    """Return the payloads that a batch query reads."""
    reader = FailureReader(letters.options, schema())
    return [
        payload
        for each in reader.partitions()
        for batch in reader.read(each)
        for payload in batch.column("payload").to_pylist()
    ]


# -- what goes wrong --------------------------------------------------------------------------


def test_a_backlog_that_somebody_skipped_is_an_error(read_once, letters, micro, admin):
    """The subscription is there, but does not stand where the checkpoint does."""
    stream = read_once(*numbers(2))
    letters.send(*numbers(2, 4))
    path = f"{letters.dead.replace('://', '/')}/subscription/{NAME}"
    admin.call("POST", f"{path}/skip_all")
    forget(admin, letters, *numbers(4, 6))
    admin.call("POST", f"{path}/skip/1")
    with pytest.raises(PulsarSourceError, match="DATA_LOSS"):
        micro(stream.offset).plan()


@pytest.mark.parametrize("read", [2, 3])
def test_messages_that_expire_while_a_stream_runs_are_an_error(letters, micro, admin, read):
    """Its subscription does not keep what is older than the namespace allows, read or not."""
    letters.send(*numbers(2))
    stream = micro()
    assert numbers(2) == stream.run()
    if read == 3:
        letters.send(b"2")
        assert [b"2"] == stream.run()
    letters.send(*numbers(read, 5))
    path = f"{letters.dead.replace('://', '/')}"
    admin.call("POST", f"{path}/subscription/{NAME}/skip_all")
    forget(admin, letters, b"5")
    with pytest.raises(PulsarSourceError, match="DATA_LOSS"):
        stream.run()


def test_what_was_deleted_after_it_was_read_is_no_error(read_and_deleted, micro):
    """Ledgers go when all of their messages are acknowledged."""
    assert [b"2"] == micro(read_and_deleted.offset).run()


def test_what_is_deleted_after_it_was_read_is_no_error(read_once, micro, backlog, letters, admin):
    """Nor while the stream runs on."""
    stream = micro(read_once(*numbers(2)).offset)
    assert [] == stream.run()
    eventually(lambda: backlog() == 0)
    forget(admin, letters, b"2")
    assert [b"2"] == stream.run()


@pytest.mark.parametrize("step", ["close", "subscribe"])
def test_a_broker_that_goes_while_a_stream_looks_for_lost_messages_is_waited_for(
    read_once, micro, backlog, letters, admin, monkeypatch, step
):
    """The subscription's consumer is opened again for this."""
    stream = micro(read_once(*numbers(2)).offset)
    assert [] == stream.run()
    eventually(lambda: backlog() == 0)
    forget(admin, letters, b"2")
    owner, name = {
        "close": (pulsar.Consumer, "close"),
        "subscribe": (ReadingSubscription, "_subscribe"),
    }[step]
    errors, call = [pulsar.ConnectError], getattr(owner, name)

    def first_fails(*args, **options):
        if errors:
            if step == "close":
                call(*args)
            raise errors.pop()
        return call(*args, **options)

    monkeypatch.setattr(owner, name, first_fails)
    assert [b"2"] == stream.run()
    assert [] == errors


@pytest.mark.parametrize("step", ["run", "commit", "restart"])
def test_a_batch_that_was_deleted_after_it_was_read_is_no_error(
    letters, micro, backlog, admin, step
):
    """Also if it is acknowledged once more, as far as that is known: other messages follow it."""
    letters.send_batch(*numbers(2))
    stream = micro()
    assert numbers(2) == stream.run()
    stream.kill()
    again = micro(stream.offset)
    assert [] == again.run()
    eventually(lambda: backlog() == 0)
    forget(admin, letters, b"2")
    if step == "commit":  # rows of another partition were processed
        again.reader.commit(again.offset)
    elif step == "restart":
        again.kill()
        again = micro(stream.offset)
    assert [b"2"] == again.run()


@pytest.mark.parametrize(
    ("silent", "slug"),
    [
        ([pulsar.Reader], "TIMEOUT"),
        ([pulsar.Consumer], "DATA_LOSS"),
        ([pulsar.Consumer, pulsar.Reader], "TIMEOUT"),
    ],
)
def test_a_broker_that_is_too_slow_costs_no_message(
    read_and_deleted, micro, backlog, monkeypatch, silent, slug
):
    """The subscription may hold all that is left, so it stays, whatever it looks like."""
    stream = read_and_deleted

    def nothing(*_):
        raise pulsar.Timeout

    with monkeypatch.context() as patch:
        for each in silent:
            patch.setattr(each, "read_next" if each is pulsar.Reader else "receive", nothing)
        with pytest.raises(PulsarSourceError, match=rf"\[PULSAR_SOURCE_{slug}\]"):
            micro(stream.offset).plan()

    assert 1 == backlog()
    assert [b"2"] == micro(stream.offset).run()


@pytest.mark.parametrize("options", [{}, {"startingTime": "1"}])
def test_a_planned_end_that_was_deleted_is_an_error(letters, micro, admin, options):
    """A batch can't be done again without its messages."""
    letters.send(*numbers(2))
    stream = micro(**options)
    end = stream.plan()
    stream.kill()
    admin.call("DELETE", f"{letters.dead.replace('://', '/')}/subscription/{NAME}")
    forget(admin, letters, b"2")
    again = micro(**options)
    with pytest.raises(PulsarSourceError, match=f"has no message {end[letters.dead]} any more"):
        again.read(end)
    again.kill()
    assert [] == micro(fail_on_data_loss="false", **options).read(end)
