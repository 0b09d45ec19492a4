"""The same scenarios on `pr.Client` and `pr.asyncio.Client`: the same names do the same things."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress

import pulsar
import pulsar.asyncio
import pytest

import pulsar_retry as pr
from support.consumer.shells import on_both_shells
from support.reading import is_settled, namespace_of
from support.waiting import eventually

SHARED = pulsar.ConsumerType.Shared
EARLIEST = pulsar.InitialPosition.Earliest

#: Milliseconds for what has to come, and for what must not.
SOON = 60_000

RETRIES = {
    "consumer_type": SHARED,
    "initial_position": EARLIEST,
    "enable_retry": True,
    "dead_letter_policy": pr.DeadLetterPolicy(2),
    "delay_levels": "100ms 200ms 300ms",
}


async def send(client, topic, *payloads, **options):
    """Publish to *topic*."""
    producer = await client.create_producer(topic, batching_enabled=False)
    for payload in payloads:
        await producer.send(payload, **options)
    # pulsar-client closes its connection when a topic of it is terminated, and opens another one.
    with suppress(pulsar.NotConnected, pulsar.asyncio.PulsarException):
        await producer.close()


async def receive_all(consumer, count, wait=SOON):
    """Receive and acknowledge so many messages; return their payloads, sorted."""
    payloads = []
    for _ in range(count):
        message = await consumer.receive(wait)
        await consumer.acknowledge(message)
        payloads.append(message.data())
    return sorted(payloads)


async def nothing_is_left(admin, topic):
    """See that every message and every letter gets its acknowledgement."""
    await asyncio.to_thread(eventually, lambda: is_settled(admin, topic))


@on_both_shells
async def test_two_retries_then_the_dead_letter_topic(client, topic, admin):
    """By level, by delay, and the third time to the dead-letter topic, with the count."""
    consumer = await client.subscribe(topic, "billing", **RETRIES)
    await send(client, topic, b"order", partition_key="alice")
    first = await consumer.receive(SOON)
    await consumer.reconsume_later(first)
    second = await consumer.receive(SOON)
    await consumer.reconsume_later(second, delay=0.2, properties={"why": "busy"})
    third = await consumer.receive(SOON)
    await consumer.reconsume_later(third, level=1)
    assert [1, 2, 3] == [pr.attempt_of(each) for each in (first, second, third)]
    assert ("100", "200") == tuple(each.properties()["DELAY_TIME"] for each in (second, third))
    assert {"why": "busy", "REAL_TOPIC": topic, "REAL_SUBSCRIPTION": "billing"}.items() <= (
        third.properties().items()
    )
    graveyard = await client.subscribe(f"{topic}-billing-DLQ", "x", initial_position=EARLIEST)
    dead = await graveyard.receive(SOON)
    assert ("3", "alice", b"order") == (
        dead.properties()["RECONSUMETIMES"],
        dead.partition_key(),
        dead.data(),
    )
    await nothing_is_left(admin, topic)


@on_both_shells
async def test_dead_letters_say_why(client, topic, admin):
    """The reason and the error travel; the future of the other form ends without a value."""
    consumer = await client.subscribe(topic, "billing", **RETRIES)
    await send(client, topic, b"a", b"b")
    await consumer.dead_letter(await consumer.receive(SOON), reason="odd", error=ValueError("x"))
    future = await consumer.dead_letter_async(await consumer.receive(SOON), reason="odd")
    assert await future is None
    graveyard = await client.subscribe(f"{topic}-billing-DLQ", "x", initial_position=EARLIEST)
    dead = [await graveyard.receive(SOON) for _ in range(2)]
    assert ["odd", "odd"] == [each.properties()["FAILURE_REASON"] for each in dead]
    assert "ValueError" in dead[0].properties()["FAILURE_ERROR"]
    await nothing_is_left(admin, topic)


@on_both_shells
async def test_a_list_of_messages(client, topic):
    """All are handed on; what is no message is told in one error, by its place."""
    consumer = await client.subscribe(topic, "billing", **RETRIES)
    await send(client, topic, b"a", b"b", b"c")
    messages = [await consumer.receive(SOON) for _ in range(3)]
    with pytest.raises(pr.BatchSettleError) as raised:
        await consumer.reconsume_later([*messages[:2], "no message", messages[2]])
    assert ([2], [pr.ConfigError]) == (
        list(raised.value.failed),
        [type(each) for each in raised.value.exceptions],
    )
    await consumer.reconsume_later([])
    assert [b"a", b"b", b"c"] == await receive_all(consumer, 3)


@on_both_shells
async def test_what_is_not_accepted(client, topic, admin):
    """The same errors, with the same words, before anything is opened or sent."""
    for options, words in (
        ({"consumer_type": "Shared"}, "consumer_type='Shared'"),
        ({"receiver_queue_size": 0}, "receiver_queue_size=0"),
        ({"batch_receive_policy": 3}, "batch_receive_policy=3"),
    ):
        with pytest.raises(pr.ConfigError, match=words):
            await client.subscribe(topic, "billing", **{**RETRIES, **options})
    with pytest.raises(pr.ConfigError, match="concurrency=0"):
        await client.subscriber(topic, "billing", print, concurrency=0)
    with pytest.raises(pr.ConfigError, match="max_messages=0"):
        await client.pull(topic, "billing", max_messages=0)
    assert [] == admin.topics(namespace_of(topic))
    consumer = await client.subscribe(topic, "billing", **RETRIES)
    await send(client, topic, b"a")
    message = await consumer.receive(SOON)
    for wish in ({"delay": -1}, {"level": -1}, {"delay": 1, "level": 1}, {"delay": []}):
        with pytest.raises(pr.ConfigError):
            await consumer.reconsume_later(message, **wish)
    with pytest.raises(pr.ConfigError, match="REAL_TOPIC"):
        await consumer.dead_letter(message, properties={"REAL_TOPIC": "x"})
    with pytest.raises(pr.ConfigError, match="as it was received"):
        await consumer.reconsume_later(message.message_id())
    with pytest.raises(pr.ConfigError, match="delay=-1"):
        await consumer.negative_acknowledge(message, delay=-1)
    with pytest.raises(pr.ConfigError, match="timeout_millis="):
        await consumer.receive(1.5)
    with pytest.raises(pr.ConfigError, match="error='no such shop'"):
        await consumer.dead_letter(message, error="no such shop")
    await consumer.reconsume_later(message)
    await refuses_letters(consumer, message)
    await consumer.acknowledge(message)  # does nothing more
    letter = await consumer.receive(SOON)
    await consumer.acknowledge(letter)
    await consumer.acknowledge(letter)  # as pulsar-client allows
    await refuses_letters(consumer, letter)
    await send(client, topic, b"b", b"c")
    message = await consumer.receive(SOON)
    await consumer.dead_letter(message)
    await refuses_letters(consumer, message)
    message = await consumer.receive(SOON)
    await consumer.reconsume_later([message])
    await refuses_letters(consumer, message)
    await consumer.acknowledge(await consumer.receive(SOON))
    await nothing_is_left(admin, topic)


async def refuses_letters(consumer, message):
    """Check that no letter is made of *message* any more, whichever way it is asked for."""
    for hand_on in (consumer.reconsume_later, consumer.dead_letter):
        with pytest.raises(pr.AlreadySettledError):
            await hand_on(message)
    with pytest.raises(pr.BatchSettleError) as caught:
        await consumer.reconsume_later([message])
    assert [pr.AlreadySettledError] == [type(each) for each in caught.value.exceptions]


@on_both_shells
async def test_nacks(client, topic, admin):
    """Come back when they say, counted; the last one goes to the dead-letter topic."""
    consumer = await client.subscribe(
        topic,
        "billing",
        SHARED,
        initial_position=EARLIEST,
        dead_letter_policy=pr.DeadLetterPolicy(2),
        negative_ack_backoff=pr.Fixed(0.1),
    )
    await send(client, topic, b"a")
    for count, delay in ((0, 0), (1, None), (2, None)):
        message = await consumer.receive(SOON)
        assert count == message.redelivery_count()
        await consumer.negative_acknowledge(message, delay=delay)
    graveyard = await client.subscribe(f"{topic}-billing-DLQ", "x", initial_position=EARLIEST)
    assert [b"a"] == await receive_all(graveyard, 1)
    await nothing_is_left(admin, topic)


@on_both_shells
async def test_up_to_a_message(client, topic, admin):
    """Cumulatively acknowledged and reconsumed on an Exclusive subscription, refused on Shared."""
    consumer = await client.subscribe(
        topic, "billing", **{**RETRIES, "consumer_type": pulsar.ConsumerType.Exclusive}
    )
    await send(client, topic, b"a", b"b", b"c", b"d")
    messages = [await consumer.receive(SOON) for _ in range(4)]
    await consumer.acknowledge_cumulative(messages[1])
    await consumer.reconsume_later_cumulative(messages[3])
    letter = await consumer.receive(SOON)
    assert (b"d", 2) == (letter.data(), pr.attempt_of(letter))
    await consumer.acknowledge_cumulative(letter)
    await nothing_is_left(admin, topic)
    shared = await client.subscribe(topic, "other", **RETRIES)
    message = await shared.receive(SOON)
    with pytest.raises(pulsar.CumulativeAcknowledgementNotAllowedError):
        await shared.acknowledge_cumulative(message)
    with pytest.raises(pr.ConfigError, match="Exclusive or Failover"):
        await shared.reconsume_later_cumulative(message)


@on_both_shells
async def test_batches(client, topic):
    """As many as the policy says, or what is there when its time is over."""
    for options in ({}, RETRIES):
        consumer = await client.subscribe(
            topic,
            f"billing{len(options)}",
            batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(3, 0, 300),
            **{"consumer_type": SHARED, "initial_position": EARLIEST, **options},
        )
        if not options:
            assert [] == await consumer.batch_receive()
            await send(client, topic, b"a", b"b", b"c", b"d")
        sizes, seen = [0], set()
        while len(seen) < 4 or max(sizes) < 3:
            batch = await consumer.batch_receive()
            sizes.append(len(batch))
            seen |= {each.data() for each in batch}
            if not batch:  # they came one by one, or have not come yet
                await send(client, topic, b"a", b"b", b"c", b"d")
        assert ({b"a", b"b", b"c", b"d"}, 3) == (seen, max(sizes))


@on_both_shells
async def test_seek_and_redelivery(client, topic):
    """What was acknowledged comes again after a seek; what was not, after a request."""
    consumer = await client.subscribe(topic, "billing", **RETRIES)
    await send(client, topic, b"a", b"b")
    assert [b"a", b"b"] == await receive_all(consumer, 2)
    await consumer.seek(pulsar.MessageId.earliest)
    again = [await consumer.receive(SOON) for _ in range(2)]
    await consumer.redeliver_unacknowledged_messages()
    assert [b"a", b"b"] == await receive_all(consumer, 2)
    assert again[1].message_id() == await consumer.get_last_message_id()


@on_both_shells
async def test_names(client, topic):
    """What a consumer and a producer are called, and whether they are connected."""
    consumer = await client.subscribe(topic, "billing", consumer_name="worker-1", **RETRIES)
    assert (topic, "billing", "worker-1", True) == (
        await consumer.topic(),
        await consumer.subscription_name(),
        await consumer.consumer_name(),
        await consumer.is_connected(),
    )
    producer = await client.create_producer(topic, "till-1")
    assert (-1, True) == (await producer.last_sequence_id(), await producer.is_connected())
    await producer.send(b"a", None, "alice")
    await producer.flush()
    assert (topic, "till-1", 0) == (
        await producer.topic(),
        await producer.producer_name(),
        await producer.last_sequence_id(),
    )
    assert [topic] == await client.get_topic_partitions(topic)
    await producer.close()


@on_both_shells
async def test_unsubscribe(client, topic, admin):
    """The subscription is gone from both topics."""
    consumer = await client.subscribe(topic, "billing", **RETRIES)
    await consumer.unsubscribe()
    await consumer.close()
    for each in (topic, f"{topic}-billing-RETRY"):
        assert "billing" not in admin.stats(each)["subscriptions"]


@on_both_shells
async def test_close_ends_what_waits(client, topic):
    """A receive that waits raises; a closed consumer refuses everything; closing twice is fine."""
    consumer = await client.subscribe(topic, "billing", **RETRIES)
    await send(client, topic, b"a")
    message = await consumer.receive(SOON)
    waits = consumer.receive(), consumer.receive(SOON), consumer.receive()
    waiting = [asyncio.create_task(each) for each in waits]
    await asyncio.sleep(0.2)
    await consumer.close()
    await consumer.close()
    ended = await asyncio.gather(*waiting, return_exceptions=True)
    assert [True] * 3 == [isinstance(each, pulsar.AlreadyClosed) for each in ended]
    for refused in (
        consumer.receive(SOON),
        consumer.acknowledge(message),
        consumer.reconsume_later(message),
        consumer.dead_letter(message),
    ):
        with pytest.raises(pulsar.AlreadyClosed):
            await refused
    again = await client.subscribe(topic, "billing", **RETRIES)
    assert [b"a"] == await receive_all(again, 1)


@on_both_shells
async def test_pulls(client, topic, admin):
    """Deliveries are acknowledged, retried and dead-lettered, and settled once."""
    await send(client, topic, b"a", b"b", b"c")
    policy = pr.RetryPolicy(max_attempts=3, backoff=pr.Immediate())
    deliveries = []
    while len(deliveries) < 3:
        deliveries += await client.pull(topic, "billing", retry_policy=policy, ack_deadline=600)
    by_payload = {each.message.data(): each for each in deliveries}
    for settle, arguments, words in (
        ("nack", {"error": "odd"}, "error='odd': expected an exception"),
        ("nack", {"delay": -1}, "delay=-1"),
        ("nack", {"delay": 1, "level": 1}, "level"),
        ("dead_letter", {"error": "odd"}, "error='odd': expected an exception"),
        ("dead_letter", {"reason": 5}, "reason=5"),
        ("modify", {"seconds": "long"}, "seconds='long'"),
        ("modify", {"seconds": -1}, "seconds=-1"),
    ):
        with pytest.raises(pr.ConfigError, match=re.escape(words)):
            await getattr(by_payload[b"b"], settle)(**arguments)  # and it can be settled still
    await by_payload[b"a"].ack()
    await by_payload[b"b"].modify(30)
    await by_payload[b"b"].nack()
    await by_payload[b"c"].dead_letter("odd")
    with pytest.raises(pr.AlreadySettledError):
        await by_payload[b"a"].ack()
    (again,) = await client.pull(topic, "billing", max_messages=1, timeout=60)
    assert (b"b", 2) == (again.message.data(), again.attempt)
    await again.hand_back()
    (again,) = await client.pull(topic, "billing", max_messages=1, timeout=60)
    assert (b"b", 2) == (again.message.data(), again.attempt)
    await again.ack()
    await nothing_is_left(admin, topic)
    graveyard = await client.subscribe(f"{topic}-billing-DLQ", "x", initial_position=EARLIEST)
    assert [b"c"] == await receive_all(graveyard, 1)


@on_both_shells
async def test_a_subscriber(client, topic):
    """Failures are judged by the policy; stopping drains, and the report says what was done."""
    await send(client, topic, *(b"%d" % number for number in range(20)))
    attempts, enough = [], asyncio.Event()
    loop = asyncio.get_running_loop()

    async def handle(message):
        attempts.append(message.data())
        await asyncio.sleep(0.01)
        if len(attempts) == 21:
            loop.call_soon_threadsafe(enough.set)
        if message.data() == b"7":
            raise ValueError("seven")
        return pr.Drop("eight") if message.data() == b"8" else None

    subscriber = await client.subscriber(
        topic,
        "billing",
        handle,
        concurrency=5,
        retry_policy=pr.RetryPolicy(max_attempts=2, backoff=pr.Immediate()),
    )
    assert not subscriber.running
    assert await subscriber.stop() is None
    await subscriber.start()
    assert subscriber.running
    with pytest.raises(RuntimeError, match="runs once"):
        await subscriber.start()
    await enough.wait()
    report = await subscriber.stop("drain", timeout=60)
    assert ("drain", 18, 1, 1, 1, True) == (
        report.mode,
        report.acknowledged,
        report.retried,
        report.dead_lettered,
        report.dropped,
        report.complete,
    )
    assert report == await subscriber.result()
    assert (False, (0, 0)) == (subscriber.running, subscriber.in_hand)


@on_both_shells
async def test_a_subscriber_that_ends_by_itself(client, topic):
    """`run` and `result` raise the reason."""
    blocker = await client.subscribe(topic, "billing", pulsar.ConsumerType.Exclusive)
    subscriber = await client.subscriber(topic, "billing", print, consumer_type=SHARED)
    with pytest.raises(pulsar.ConsumerBusy):
        await subscriber.run()
    with pytest.raises(pulsar.ConsumerBusy):
        await subscriber.result()
    assert await subscriber.stop() is None
    await blocker.close()


@on_both_shells
async def test_a_subscriber_that_hands_back(client, topic):
    """What was not begun is redelivered to others; a handler may stop its own subscriber."""
    await send(client, topic, *(b"%d" % number for number in range(10)))
    first = asyncio.Event()
    loop = asyncio.get_running_loop()
    stopped = []

    async def handle(_message):
        stopped.append(await subscriber.stop("hand_back", timeout=60))
        loop.call_soon_threadsafe(first.set)

    subscriber = await client.subscriber(topic, "billing", handle, concurrency=1)
    await subscriber.start()
    await first.wait()
    report = await subscriber.result(90)
    assert ([None], 1) == (stopped, report.acknowledged)
    consumer = await client.subscribe(topic, "billing", **RETRIES)
    assert 9 == len(await receive_all(consumer, 9))


@on_both_shells
async def test_a_client_that_is_closed(client, topic):
    """Its consumers are closed with it, letters in flight first; closing again is an error."""
    consumer = await client.subscribe(topic, "billing", **RETRIES)
    await send(client, topic, *(b"%d" % number for number in range(50)))
    messages = [await consumer.receive(SOON) for _ in range(50)]
    futures = [await consumer.reconsume_later_async(each, delay=1) for each in messages]
    await client.close()
    assert [None] * 50 == await asyncio.gather(*futures)
    with pytest.raises(pulsar.AlreadyClosed):
        await consumer.receive(SOON)
    with pytest.raises(pulsar.AlreadyClosed):
        await client.close()
    await consumer.close()
