"""What only asyncio has: cancelling, event loops, and calls that must not block them."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress

import pulsar
import pulsar.asyncio
import pytest

import pulsar_retry as pr
from support.consumer.shells import PATIENT, on_a_loop
from support.reading import A_LOOK, is_settled
from support.waiting import eventually

SHARED = pulsar.ConsumerType.Shared
EARLIEST = pulsar.InitialPosition.Earliest
QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)

#: Milliseconds for what has to come, and for what must not.
SOON = 60_000

RETRIES = {
    "consumer_type": SHARED,
    "initial_position": EARLIEST,
    "enable_retry": True,
    "delay_levels": "100ms 200ms 300ms",
}


async def send(client, topic, count, **options):
    """Publish so many messages."""
    producer = await client.create_producer(topic, block_if_queue_full=True, **options)
    await asyncio.gather(*(producer.send(b"%d" % number) for number in range(count)))


async def receive_different(consumer, count):
    """Receive and acknowledge until so many different payloads have come; return them."""
    payloads = set()
    while len(payloads) < count:
        message = await consumer.receive(SOON)
        await consumer.acknowledge(message)
        payloads.add(message.data())
    return payloads


@pytest.mark.parametrize("options", [RETRIES, {k: RETRIES[k] for k in list(RETRIES)[:2]}])
def test_cancelled_receives_lose_nothing(broker, topic, options, admin):
    """Each message is received once, whenever the tasks that wait for them are cancelled."""
    chance = random.Random(7)

    async def scenario(client):
        consumer = await client.subscribe(topic, "billing", **options)
        received = []

        async def one(patience):
            with suppress(TimeoutError, pulsar.Timeout):
                if patience % 2:
                    message = await asyncio.wait_for(consumer.receive(), patience / 10_000)
                else:
                    message = await consumer.receive(patience // 10)
                received.append(message.data())
                await consumer.acknowledge(message)

        sending = asyncio.create_task(send(client, topic, 500))
        while len(received) < 500:
            await asyncio.gather(*(one(chance.randrange(30)) for _ in range(10)))
        await sending
        return received

    received = on_a_loop(broker, scenario)
    eventually(lambda: is_settled(admin, topic))
    assert sorted(b"%d" % number for number in range(500)) == sorted(received)


def test_cancelled_batches_lose_nothing(broker, topic):
    """What a cancelled `batch_receive` had is there for the next one."""

    async def scenario(client):
        policy = pulsar.ConsumerBatchReceivePolicy(100, 0, 60_000)
        consumer = await client.subscribe(topic, "billing", batch_receive_policy=policy, **RETRIES)
        await send(client, topic, 60)
        for _ in range(5):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(consumer.batch_receive(), 0.1)
        assert 60 == len(await receive_different(consumer, 60))

    on_a_loop(broker, scenario)


def test_a_cancelled_hand_off_happens_or_comes_back(broker, topic):
    """Every message of a cancelled `reconsume_later` is there again, as a letter or as itself."""

    async def scenario(client):
        consumer = await client.subscribe(topic, "billing", max_pending_letters=5, **RETRIES)
        await send(client, topic, 100)
        messages = [await consumer.receive(SOON) for _ in range(100)]
        tasks = [asyncio.create_task(consumer.reconsume_later(each)) for each in messages[:80]]
        tasks.append(asyncio.create_task(consumer.reconsume_later(messages[80:])))
        for _ in range(3):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return await receive_different(consumer, 100)

    assert 100 == len(on_a_loop(broker, scenario))


def test_the_loop_goes_on_while_letters_wait_for_room(broker, topic):
    """With one letter in flight at a time, `reconsume_later_async` waits and blocks nobody."""

    async def scenario(client):
        consumer = await client.subscribe(topic, "billing", max_pending_letters=1, **RETRIES)
        await send(client, topic, 200)
        messages = [await consumer.receive(SOON) for _ in range(200)]
        turns = 0

        async def others():
            nonlocal turns
            while True:
                await asyncio.sleep(0)
                turns += 1

        other = asyncio.create_task(others())
        futures = [await consumer.reconsume_later_async(each, delay=5) for each in messages]
        assert all(each.done() for each in futures[:-1])
        await asyncio.gather(*futures)
        other.cancel()
        assert turns > 200

    on_a_loop(broker, scenario)


def test_a_busy_topic_leaves_the_loop_to_others(broker, topic):
    """A loop of `receive` and `acknowledge` that never has to wait can be timed and cancelled."""

    async def scenario(client):
        consumer = await client.subscribe(topic, "billing", **RETRIES)
        await send(client, topic, 5_000)
        await asyncio.sleep(1)  # let pulsar-client's queue fill up

        async def work():
            async for message in consumer:
                await consumer.negative_acknowledge(message, delay=0)  # there is always one

        with pytest.raises(TimeoutError):
            await asyncio.wait_for(work(), 0.5)

    on_a_loop(broker, scenario)


def test_no_call_takes_a_thread(broker, topic):
    """Hundreds of tasks that receive, send, acknowledge and hand on need the same few threads."""

    async def scenario(client):
        consumer = await client.subscribe(topic, "billing", **RETRIES)
        await send(client, topic, 1)
        await consumer.reconsume_later(await consumer.receive(SOON))
        await consumer.acknowledge(await consumer.receive(SOON))
        before, most = threading.active_count(), 0
        producer = await client.create_producer(topic)

        async def one(number):
            nonlocal most
            await producer.send(b"%d" % number)
            await consumer.reconsume_later(await consumer.receive(SOON), delay=0.1)
            message = await consumer.receive(SOON)
            most = max(most, threading.active_count())
            await consumer.acknowledge(message)

        await asyncio.gather(*(one(number) for number in range(300)))
        return before, most

    before, most = on_a_loop(broker, scenario)
    assert most <= before + 2  # the pool may still grow to its bound, and receipts have a thread


def test_another_loop_is_told(broker, topic):
    """What belongs to one loop says so on another; the client itself works on both."""
    client = pr.asyncio.Client(broker.service_url, logger=QUIET, **PATIENT)

    async def make():
        made = [
            await client.subscribe(topic, "billing", **RETRIES),
            await client.create_producer(topic),
        ]
        await made[1].send(b"x")
        return made

    async def misuse(consumer, _producer):
        for call in (
            consumer.receive(),
            consumer.batch_receive(),
            consumer.seek(pulsar.MessageId.earliest),
            consumer.close(),
        ):
            with pytest.raises(pr.EventLoopError, match="the event loop on which it was made"):
                await call

    async def at_the_same_time():
        consumer = await client.subscribe(topic, "other", **RETRIES)
        assert {b"x"} == await receive_different(consumer, 1)

    asyncio.run(misuse(*asyncio.run(make())))
    threads = [
        threading.Thread(target=asyncio.run, args=[each()]) for each in (make, at_the_same_time)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    asyncio.run(client.close())


def run(code, broker, *arguments):
    """Run *code* in a process of its own; return what it printed, errors included."""
    process = subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(code), broker.service_url, *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    # Of a step of the loop that took long: machines may be slow.
    errors = [line for line in process.stderr.splitlines() if not line.startswith("Executing <")]
    return process.stdout + "".join(errors)


def test_a_forked_child_is_told(broker, topic):
    """Whatever was made before the fork raises ForkedError in the child, at once."""
    output = run(
        """
        import asyncio, os, sys, warnings
        import pulsar, pulsar_retry as pr

        url, topic = sys.argv[1:]
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        client = pr.asyncio.Client(url, operation_timeout_seconds=90, logger=quiet)

        async def make():
            return await client.subscribe(topic, "billing"), await client.create_producer(topic)

        consumer, producer = asyncio.run(make())
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of forks itself
        if os.fork() == 0:
            for call in (
                lambda: client.subscribe(topic, "other"),
                lambda: client.get_topic_partitions(topic),
                consumer.receive,
                consumer.close,
                lambda: producer.send(b"x"),
            ):
                async def use():
                    await asyncio.wait_for(call(), 20)

                try:
                    asyncio.run(use())
                except pr.ForkedError:
                    print("told", flush=True)
            os._exit(0)
        os.wait()
        asyncio.run(client.close())
        """,
        broker,
        topic,
    )
    assert ["told"] * 5 == output.splitlines()


def test_a_loop_that_closes_under_everything(broker, topic):
    """Receives and letters are under way; the process goes on, and nothing is lost."""
    output = run(
        """
        import asyncio, gc, sys, time
        import pulsar, pulsar_retry as pr

        url, topic = sys.argv[1:]
        quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        shared, earliest = pulsar.ConsumerType.Shared, pulsar.InitialPosition.Earliest
        options = dict(consumer_type=shared, initial_position=earliest, enable_retry=True)
        client = pr.asyncio.Client(url, operation_timeout_seconds=90, logger=quiet)

        async def begin():
            consumer = await client.subscribe(topic, "billing", **options)
            producer = await client.create_producer(topic)
            for number in range(50):
                await producer.send(b"%d" % number)
            for _ in range(25):
                message = await consumer.receive()
                await consumer.reconsume_later_async(message, delay=0.1)
            for _ in range(100):
                asyncio.create_task(consumer.receive())
            await asyncio.sleep(0)

        loop = asyncio.new_event_loop()
        loop.run_until_complete(begin())
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # it is what is tested
        loop.close()
        time.sleep(1)

        async def rest():
            other = pr.asyncio.Client(url, operation_timeout_seconds=90, logger=quiet)
            await client.close()
            consumer = await other.subscribe(topic, "billing", **options)
            left = {b"%d" % number for number in range(50)}
            while left:
                message = await consumer.receive(60_000)
                await consumer.acknowledge(message)
                left.discard(message.data())
            print("all are there")
            await other.close()

        asyncio.run(rest())
        """,
        broker,
        topic,
    )
    assert "all are there\n" == output


def test_errors_nobody_looks_at(broker, topic, admin):
    """A dropped future of a failed hand-off leaves no complaint, and the message comes back."""

    async def scenario(client):
        consumer = await client.subscribe(topic, "billing", **RETRIES)
        admin.terminate(f"{topic}-billing-RETRY")
        await send(client, topic, 3)
        for _ in range(3):
            await consumer.reconsume_later_async(await consumer.receive(SOON))
        assert 3 == len(await receive_different(consumer, 3))
        while not await asyncio.to_thread(is_settled, admin, topic):
            with suppress(pulsar.Timeout):
                await consumer.acknowledge(await consumer.receive(A_LOOK))
        quiet = await client.subscribe(f"{topic}-quiet", "billing", **RETRIES)
        closing = [asyncio.create_task(quiet.receive()) for _ in range(3)]
        await asyncio.sleep(0.1)
        await quiet.close()
        await asyncio.wait(closing)
        for each in closing:
            assert isinstance(each.exception(), pulsar.AlreadyClosed)

    on_a_loop(broker, scenario)


def test_errors_have_both_names(broker, topic):
    """`except pulsar.Timeout` and `except pulsar.asyncio.PulsarException` catch the same."""

    async def scenario(client):
        consumer = await client.subscribe(topic, "billing", **RETRIES)
        with pytest.raises(pulsar.Timeout) as raised:
            await consumer.receive(10)
        assert isinstance(raised.value, pulsar.asyncio.PulsarException)
        assert pulsar.Result.Timeout == raised.value.error()
        with pytest.raises(pulsar.asyncio.PulsarException) as raised:
            await client.subscribe(topic, "billing", pulsar.ConsumerType.Exclusive)
        assert isinstance(raised.value, pulsar.ConsumerBusy)
        await consumer.close()
        with pytest.raises(pulsar.asyncio.PulsarException) as raised:
            await consumer.receive()
        assert pulsar.Result.AlreadyClosed == raised.value.error()

    on_a_loop(broker, scenario)


def test_what_a_plug_in_raises_is_told(broker, topic):
    """The error of `subscribe` has pulsar-client's whole text."""

    def no_token():
        raise OSError("no token today")

    async def scenario(client):
        with pytest.raises(pulsar.AuthenticationError, match="no token today"):
            await client.subscribe(topic, "billing")

    on_a_loop(broker, scenario, authentication=pulsar.AuthenticationToken(no_token))


def test_a_client_that_is_shut_down(broker, topic):
    """Whatever is under way fails, and closing it is no error."""

    async def scenario(client):
        consumer = await client.subscribe(topic, "billing", **RETRIES)
        producer = await client.create_producer(topic)
        await producer.send(b"x")
        waiting = [asyncio.create_task(consumer.receive()) for _ in range(2)]
        client.shutdown()
        ended = await asyncio.gather(*waiting, producer.send(b"y"), return_exceptions=True)
        assert pulsar.Result.AlreadyClosed == ended[-1].error()
        assert any(isinstance(each, pulsar.AlreadyClosed) for each in ended[:2])

    on_a_loop(broker, scenario)


def test_what_nobody_waits_for_any_more_is_closed(broker, topic):
    """A cancelled `subscribe` leaves no consumer behind, so an Exclusive one can come."""

    async def scenario(client):
        for _ in range(5):
            opening = asyncio.create_task(client.subscribe(topic, "billing"))
            await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        while True:
            try:
                return await client.subscribe(topic, "billing")
            except pulsar.ConsumerBusy:
                await asyncio.sleep(0.05)

    on_a_loop(broker, scenario)


def test_a_cancelled_pull_gives_its_messages_to_the_next(broker, topic):
    """And they are the first attempt still."""

    async def scenario(client):
        assert [] == await client.pull(topic, "billing", timeout=0.1)
        pulling = asyncio.create_task(client.pull(topic, "billing", max_messages=5, timeout=3))
        await asyncio.sleep(0.2)
        pulling.cancel()
        await send(client, topic, 3)
        deliveries = []
        while len(deliveries) < 3:
            deliveries += await client.pull(topic, "billing", timeout=60)
        assert {1} == {each.attempt for each in deliveries}
        await asyncio.gather(*(each.ack() for each in deliveries))

    on_a_loop(broker, scenario)


def test_a_receive_after_one_that_found_no_thread(broker, topic, monkeypatch):
    """The first one says that no thread can be started; the next one gets the message."""
    start = threading.Thread.start

    def fail(thread):
        if thread.name == "pulsar-retry-receiver":
            raise RuntimeError("can't start new thread")
        start(thread)

    async def scenario(client):
        consumer = await client.subscribe(topic, "billing", **RETRIES)
        with monkeypatch.context() as broken:
            broken.setattr(threading.Thread, "start", fail)
            for _ in range(2):
                with pytest.raises(RuntimeError, match="new thread"):
                    await consumer.receive()
        await send(client, topic, 1)
        assert b"0" == (await consumer.receive(60_000)).data()

    on_a_loop(broker, scenario)


def test_nothing_waits_for_pulls(broker, topic):
    """Subscribing, settling and closing go on while many pulls wait for messages."""

    async def scenario(client):
        names = [f"{topic}-{number}" for number in range(8)]
        pulls = [asyncio.create_task(client.pull(each, "billing", timeout=600)) for each in names]
        await send(client, topic, 1)
        (delivery,) = await client.pull(topic, "billing", timeout=60)
        await delivery.nack(delay=0)
        (delivery,) = await client.pull(topic, "billing", timeout=60)
        assert 2 == delivery.attempt
        await delivery.ack()
        await (await client.subscribe(topic, "other")).close()
        assert not any(each.done() for each in pulls)
        await client.close()
        assert {pulsar.AlreadyClosed} == {
            type(each).__mro__[1] for each in await asyncio.gather(*pulls, return_exceptions=True)
        }

    on_a_loop(broker, scenario)


@pytest.mark.parametrize(
    "options",
    [
        {"receiver_queue_size": 0},
        {"unacked_messages_timeout_ms": 10_000},
        {"unacked_messages_timeout_ms": 10_000, "enable_retry": True},
        {"is_pattern_topic": True},
    ],
)
def test_consumers_of_other_kinds(broker, topic, options):
    """Without a queue, with an acknowledgement time-out, of a pattern: cancelled, nothing lost."""

    async def scenario(client):
        await send(client, topic, 20, batching_enabled=False)  # without a queue, no batches
        consumer = await client.subscribe(
            topic, "billing", SHARED, initial_position=EARLIEST, **options
        )
        received = set()
        while len(received) < 20:
            with suppress(TimeoutError):
                message = await asyncio.wait_for(consumer.receive(), 0.02)
                received.add(message.data())
                await consumer.acknowledge(message)

    on_a_loop(broker, scenario)


def test_a_broker_that_restarts_under_a_receive(own_broker):
    """Who waits goes on waiting; letters that wait for their delay come, with their count."""

    async def scenario(client):
        consumer = await client.subscribe("orders", "billing", **RETRIES)
        producer = await client.create_producer("orders", send_timeout_millis=240_000)
        await producer.send(b"before")
        await consumer.reconsume_later(await consumer.receive(SOON), delay=3)
        waiting = asyncio.create_task(consumer.receive())
        await asyncio.sleep(0)
        await asyncio.to_thread(own_broker.restart)
        await producer.send(b"after")
        seen = {}
        while set(seen) != {b"before", b"after"} or seen[b"before"] < 2:
            message = await waiting
            seen[message.data()] = max(seen.get(message.data(), 0), pr.attempt_of(message))
            await consumer.acknowledge(message)
            waiting = asyncio.create_task(consumer.receive())
        waiting.cancel()

    on_a_loop(own_broker, scenario)


def test_handlers_run_on_the_loop_of_their_caller(broker, topic):
    """They may use what belongs to it, `concurrency` of them at a time."""

    async def scenario(client):
        await send(client, topic, 40)
        mine, lock, running, most = asyncio.get_running_loop(), asyncio.Semaphore(40), 0, 0
        full, done = asyncio.Event(), asyncio.Event()
        count = 0

        async def handle(_message):
            nonlocal running, most, count
            assert asyncio.get_running_loop() is mine
            running += 1
            most = max(most, running)
            if most == 4:
                full.set()
            async with lock:
                await full.wait()  # for as many as may run at a time
                await asyncio.sleep(0.02)
            running -= 1
            count += 1
            if count == 40:
                done.set()

        async with client.subscriber(topic, "billing", handle, concurrency=4) as subscriber:
            await done.wait()
            report = await subscriber.stop()
        assert (4, 40) == (most, report.acknowledged)

    on_a_loop(broker, scenario)


def test_a_cancelled_run_drains(broker, topic, admin):
    """The handler that runs ends and its message is acknowledged; no thread is left."""

    async def scenario(client):
        await send(client, topic, 1)
        begun, ended = asyncio.Event(), False

        async def handle(_message):
            nonlocal ended
            begun.set()
            await asyncio.sleep(0.3)
            ended = True

        subscriber = client.subscriber(topic, "billing", handle)
        running = asyncio.create_task(subscriber.run())
        await begun.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (True, False) == (ended, subscriber.running)

    on_a_loop(broker, scenario)
    eventually(lambda: is_settled(admin, topic))


def test_a_loop_that_ends_under_a_subscriber(broker, topic):
    """What its handlers had is redelivered, and counts as no attempt."""

    async def abandon(client, begun):
        await send(client, topic, 3)

        async def handle(_message):
            begun.set()
            await asyncio.sleep(60)

        subscriber = client.subscriber(topic, "billing", handle)
        await subscriber.start()
        await asyncio.to_thread(begun.wait, 60)
        return subscriber

    async def rest(client):
        consumer = await client.subscribe(topic, "billing", **RETRIES)
        messages = [await consumer.receive(SOON) for _ in range(3)]
        assert {0} == {pr.RetryProperties.of(each).reconsume_times for each in messages}
        await client.close()

    client = pr.asyncio.Client(broker.service_url, logger=QUIET, **PATIENT)
    subscriber = asyncio.run(abandon(client, threading.Event()))
    eventually(lambda: not subscriber.running)
    asyncio.run(rest(client))


def test_a_signal_ends_run(broker, topic):
    """SIGTERM drains all who run, and the process ends with 0 and its handlers as before."""
    output = run(
        """
        import asyncio, os, signal, sys
        import pulsar, pulsar_retry as pr

        url, topic = sys.argv[1:]

        async def handle(message):
            global handled
            handled += 1
            if handled == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.2)

        handled = 0

        async def main():
            quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
            async with pr.asyncio.Client(url, operation_timeout_seconds=90, logger=quiet) as client:
                producer = await client.create_producer(topic)
                await producer.send(b"x")
                subscribers = [client.subscriber(topic, name, handle) for name in ("a", "b")]
                for report in await asyncio.gather(*(each.run() for each in subscribers)):
                    print(report.mode, report.acknowledged, report.complete)
                print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)

        asyncio.run(main())
        """,
        broker,
        topic,
    )
    assert ["drain 1 True", "drain 1 True", "True"] == output.splitlines()
    assert signal.SIG_DFL == signal.getsignal(signal.SIGTERM)
