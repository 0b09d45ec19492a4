"""What a redrive takes letters from, and through which subscription."""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from urllib.error import HTTPError

import pulsar
import pytest

import pulsar_retry as pr
from pulsar_retry.replay import Filter, Redrive, Redriven
from pulsar_retry.replay.ack_state import EntryPlace
from pulsar_retry.replay.reading import read_letters, read_one
from pulsar_retry.replay.redriving import source
from pulsar_retry.replay.redriving.targets import DISCARD
from support.reading import SOON, SUBSCRIPTION, drain
from support.replay.redriving import at_letter, received
from support.waiting import eventually


def test_letters_are_taken_through_the_subscription_that_keeps_them(dead, run_json) -> None:
    """`pulsar-retry` is that, beside whatever others read; `dlq ls` counts what waits for it."""
    consumer = dead.subscribe()
    dead.create("pulsar-retry", "audit")
    dead.fill(2)
    assert 1 == dead.redrive(limit=1).run().redriven
    namespace = dead.topic.removeprefix("persistent://").rpartition("/")[0]
    counts = {each["topic"]: each["backlog"] for each in run_json("dlq", "ls", namespace)}

    assert 1 == counts[dead.dlq]
    assert 1 == sum(each["count"] for each in run_json("dlq", "show", dead.dlq))
    assert (1, 2) == (dead.backlog("pulsar-retry"), dead.backlog("audit"))
    received(consumer, 1)


@pytest.mark.parametrize("partitions", [0, 2])
def test_retries_that_wait_are_made_due(dead, partitions) -> None:
    """While their consumer goes on; they come at once, as the attempts that they are."""
    if partitions:
        dead.admin.create_partitioned_topic(dead.retry, partitions)
    consumer = dead.subscribe()
    dead.fill_retry(4, delay=3_600)
    where = Filter(error="ValueError")
    assert 2 == Redrive(dead.retry, cluster=dead.cluster, where=where, dry_run=True).run().redriven

    done = Redrive(dead.retry, cluster=dead.cluster, where=where).run()

    assert (2, {dead.retry: 2}, {"filtered": 2}) == (done.redriven, done.targets, done.left)
    again = Redrive(dead.retry, cluster=dead.cluster, where=where).run()
    assert (0, {"due": 2, "filtered": 2}) == (again.redriven, again.left)
    messages = received(consumer, 2)
    assert {b"1", b"3"} == {each.data() for each in messages}
    assert [2, 2] == [pr.attempt_of(each) for each in messages]
    gone = Redrive(dead.retry, DISCARD, cluster=dead.cluster).run()
    assert (2, True) == (gone.redriven, gone.is_complete)


@pytest.mark.parametrize("partitions", [0, 2])
def test_a_retry_topic_of_any_name_is_left_to_its_consumers(dead, client, partitions) -> None:
    """Its letters say that it is one."""
    again = f"{dead.topic}-again"
    if partitions:
        dead.admin.create_partitioned_topic(again, partitions)
    consumer = client.subscribe(
        dead.topic,
        "billing",
        consumer_type=pulsar.ConsumerType.Shared,
        enable_retry=True,
        dead_letter_policy=pr.DeadLetterPolicy(9, retry_letter_topic=again),
    )
    client.create_producer(dead.topic).send(b"tea")
    consumer.reconsume_later(consumer.receive(SOON), delay=3_600)
    options = {"cluster": dead.cluster, "topic": dead.topic, "subscription": "billing"}

    looked = Redrive(again, any_topic=True, dry_run=True, **options).run()
    done = Redrive(again, any_topic=True, **options).run()

    assert (1, ()) == (looked.redriven, looked.problems)
    assert (1, {again: 1}, {}) == (done.redriven, done.targets, done.left)
    assert b"tea" == consumer.receive(SOON).data()


def test_a_first_letter_that_the_broker_cannot_show(dead, client) -> None:
    """It is a chunk that is compressed; the topic is one of dead letters then."""
    other = f"{dead.topic}-other"
    consumer = dead.subscribe()
    dead.cluster.admin().topics.create(other)
    dead.cluster.admin().subscriptions.create(other, "keep", at="earliest")
    producer = client.create_producer(
        other,
        batching_enabled=False,
        chunking_enabled=True,
        compression_type=pulsar.CompressionType.ZLib,
    )
    producer.send(os.urandom(6_000_000), properties=dead.properties(0))

    options = {"cluster": dead.cluster, "topic": dead.topic, "subscription": SUBSCRIPTION}
    done = Redrive(other, any_topic=True, **options).run()

    assert (1, {}, True) == (done.redriven, done.left, done.is_complete)
    received(consumer, 1)


@pytest.mark.parametrize("partitions", [0, 2])
def test_two_operators_at_the_same_moment(dead, partitions, monkeypatch) -> None:
    """One goes on, although both see the other one."""
    monkeypatch.setattr(source, "_BUSY_PATIENCE", 30.0)
    if partitions:
        dead.cluster.admin().topics.create(dead.retry, partitions=partitions)
    consumer = dead.subscribe()
    dead.fill_retry(3, delay=3_600)
    both, look = threading.Barrier(2), source.who_reads
    ends: list[Redriven | pr.RedriveError] = []

    def together(*arguments, **options) -> str | None:
        with contextlib.suppress(threading.BrokenBarrierError):  # the other one looks no more
            both.wait(10)
        return look(*arguments, **options)

    def run() -> None:
        try:
            ends.append(Redrive(dead.retry, cluster=dead.cluster, wait=0).run())
        except pr.RedriveError as error:
            ends.append(error)

    monkeypatch.setattr(source, "who_reads", together)
    operators = [threading.Thread(target=run) for _ in range(2)]
    for each in operators:
        each.start()
    for each in operators:
        each.join()

    assert 3 == sum(each.redriven for each in ends if isinstance(each, Redriven))
    received(consumer, 3)


def test_retries_that_become_due_meanwhile_are_left_alone(dead, monkeypatch) -> None:
    """Their consumer gets them, so a copy would only come twice."""
    dead.subscribe().close()
    dead.fill_retry(1, delay=3_600)
    dead.fill_retry(2, delay=5)
    at_letter(monkeypatch, 1, lambda: time.sleep(5))

    done = Redrive(dead.retry, cluster=dead.cluster).run()

    assert (1, {"due": 2}) == (done.redriven, done.left)


@pytest.mark.parametrize("partitions", [0, 2])
def test_two_operators_and_a_retry_topic(dead, partitions, monkeypatch) -> None:
    """The second one reads whose job it is; the consumer misses nothing that is due meanwhile."""
    monkeypatch.setattr("pulsar_retry.replay.redriving.source._BUSY_PATIENCE", 0.1)
    if partitions:
        dead.admin.create_partitioned_topic(dead.retry, partitions)
    consumer = dead.subscribe()
    dead.fill_retry(50, delay=3_600)
    first = Redrive(dead.retry, cluster=dead.cluster, rate=10, by="ada")
    said = rf"ada runs redrive {first.job} since 2.*, about \d+ letters are left"
    told: list[str] = []

    def second(so_far: Redriven) -> None:
        if so_far.redriven and not told:
            again = {"cluster": dead.cluster, "by": "grace"}
            told.extend(Redrive(dead.retry, dry_run=True, **again).run().problems)
            with pytest.raises(pr.RedriveError, match=said):
                Redrive(dead.retry, **again).run()
            dead.fill_retry(8, delay=0)
            due = 0
            while due < 8:
                message = consumer.receive(SOON)
                consumer.acknowledge(message)
                due += message.properties().get("DELAY_TIME") == "0"
            first.cancel()

    assert "cancelled" == first.run(second).stopped
    assert re.search(said, told[0])


@pytest.mark.parametrize("to", ["retry", DISCARD])
@pytest.mark.parametrize("taken", [{"0"}, {"1"}, {"0", "1"}], ids=["first", "last", "both"])
def test_a_retry_is_taken_out_of_its_batch(dead, to, taken) -> None:
    """What stays of the batch is still delivered, also the first message."""
    dead.subscribe().close()
    producer = dead.client.create_producer(
        dead.retry, batching_enabled=True, batching_max_publish_delay_ms=10_000
    )
    for number in range(2):
        facts = {"DELAY_TIME": "3600000", "FAILURE_ERROR": f"Error{number}"}
        properties = dead.properties(number, **facts)
        producer.send_async(b"%d" % number, None, properties=properties)
    producer.flush()
    producer.close()

    where = Filter(error=[f"Error{each}" for each in taken])
    done = Redrive(dead.retry, to, cluster=dead.cluster, where=where).run()

    left = {"filtered": 1, "with_batch": 1} if len(taken) == 1 else {}
    assert (len(taken), left) == (done.redriven, done.left)
    assert done.is_complete is not bool(left)
    stay = {b"0", b"1"} - ({each.encode() for each in taken} if to == DISCARD else set())
    assert stay <= {each.data() for each in drain(dead.subscribe(), count=len(stay))}


def test_retries_are_taken_out_of_several_batches(dead) -> None:
    """Those of the second batch take none out of the first one."""
    dead.subscribe().close()
    producer = dead.client.create_producer(
        dead.retry, batching_enabled=True, batching_max_publish_delay_ms=10_000
    )
    for batch in (["stays", "goes"], ["goes", "goes", "stays"]):
        for error in batch:
            properties = dead.properties(0, DELAY_TIME="3600000", FAILURE_ERROR=error)
            producer.send_async(error.encode(), None, properties=properties)
        producer.flush()
    producer.close()

    where = Filter(error="goes")
    done = Redrive(dead.retry, DISCARD, cluster=dead.cluster, where=where).run()

    assert (3, {"filtered": 2, "with_batch": 3}) == (done.redriven, done.left)
    came = [each.data() for each in drain(dead.subscribe(), count=2, but_delayed=True)]
    assert 2 == came.count(b"stays")


@pytest.mark.parametrize("dry_run", [True, False])
def test_an_application_s_own_messages_are_not_taken(dead, client, run, dry_run) -> None:
    """Where nothing says that a topic holds letters, somebody has to."""
    elsewhere = f"{dead.topic}-workbench"
    people = client.subscribe(elsewhere, "people")
    billing = client.subscribe(dead.topic, "billing")
    client.create_producer(dead.topic).send(b"tea")
    billing.close()

    with pytest.raises(pr.ConfigError, match=r"its subscription billing has not .*--any-topic"):
        Redrive(dead.topic, elsewhere, cluster=dead.cluster, dry_run=dry_run).run()
    how = "--dry-run" if dry_run else "--yes"
    code, _, errors = run("redrive", dead.topic, "--to", elsewhere, how)
    assert 2 == code
    assert "--any-topic" in errors
    assert {"billing"} == set(dead.cluster.admin().subscriptions.names(dead.topic))
    code, output, _ = run("redrive", dead.topic, "--to", elsewhere, how, "--any-topic")
    assert 0 == code
    assert ("1 would be redriven" if dry_run else "1 redriven") in output
    if not dry_run:
        assert b"tea" == people.receive(60_000).data()


def test_letters_of_a_topic_of_any_name_are_taken(dead, client) -> None:
    """The subscription that the consumers made to keep them tells that they are letters.

    Only the user knows whose: such a topic may have letters of several subscriptions.
    """
    consumer = client.subscribe(
        dead.topic,
        "billing",
        consumer_type=pulsar.ConsumerType.Shared,
        enable_retry=True,
        dead_letter_policy=pr.DeadLetterPolicy(3, dead_letter_topic=f"{dead.topic}-graveyard"),
    )
    client.create_producer(dead.topic).send(b"tea")
    consumer.dead_letter(consumer.receive(60_000), reason="invalid")

    graveyard = f"{dead.topic}-graveyard"
    assert {"no_target": 1} == Redrive(graveyard, cluster=dead.cluster).run().left
    owner = {"topic": dead.topic, "subscription": "billing"}
    assert 1 == Redrive(graveyard, cluster=dead.cluster, **owner).run().redriven

    received(consumer, 1)


@pytest.mark.parametrize("batch", [1, 4])
def test_letters_that_expire_while_they_are_read(dead, admin, client, batch) -> None:
    """The broker moves every reader past them; while they are kept, they are letters."""
    namespace = dead.topic.removeprefix("persistent://").rpartition("/")[0]
    kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
    admin.set_namespace_policy(namespace, "retention", kept)
    dead.create()
    options = {"batching_enabled": True, "batching_max_messages": batch} if batch > 1 else {}
    dead.fill(1200 * batch, **options)
    missed: list[EntryPlace] = []
    reading = read_letters(
        client, dead.cluster.admin(), [dead.dlq], unreadable=lambda _, place: missed.append(place)
    )
    found = [next(reading).raw.data()]
    path = dead.dlq.replace("://", "/")

    def passed_over() -> bool:
        with contextlib.suppress(HTTPError):  # none is as old as that yet
            admin.call("POST", f"{path}/all_subscription/expireMessages/1")
        cursors = admin.get(f"{path}/internalStats")["cursors"].values()
        return all(int(each["readPosition"].split(":")[1]) >= 1199 for each in cursors)

    eventually(passed_over)
    dead.fill(1)
    found += [each.raw.data() for each in reading]

    assert [b"%d" % number for number in range(1200 * batch)] == found
    assert not missed


def test_a_letter_of_any_batch_is_read_by_its_id(dead) -> None:
    """Not its neighbour of the batch before."""
    dead.fill(4, batching_enabled=True, batching_max_messages=2)
    admin = dead.cluster.admin()
    stored = list(read_letters(dead.client, admin, [dead.dlq], "keep"))

    found = [read_one(dead.client, admin, [dead.dlq], str(each.position)) for each in stored]

    assert [b"0", b"1", b"2", b"3"] == [each and each.raw.data() for each in found]


@pytest.mark.parametrize("compression", ["NONE", "ZLib"])
def test_a_letter_in_chunks_is_read_by_its_id(dead, compression) -> None:
    """That is the id of its last chunk, and it is read from its first one."""
    dead.create("keep")
    producer = dead.client.create_producer(
        dead.dlq,
        batching_enabled=False,
        chunking_enabled=True,
        compression_type=getattr(pulsar.CompressionType, compression),
    )
    for number, payload in enumerate([b"before", os.urandom(12_000_000), b"after"]):
        producer.send(payload, properties=dead.properties(number))
    admin = dead.cluster.admin()
    stored = list(read_letters(dead.client, admin, [dead.dlq], "keep"))

    found = [read_one(dead.client, admin, [dead.dlq], str(each.position)) for each in stored]

    assert [6, 12_000_000, 5] == [each and each.raw.length() for each in found]
    first_chunk = f"{stored[1].position.ledger}:1"
    with pytest.raises(pr.PulsarRetryError, match="incomplete"):
        read_one(dead.client, admin, [dead.dlq], first_chunk)
