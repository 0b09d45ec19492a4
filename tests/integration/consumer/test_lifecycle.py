"""Beginning and end: close, drop, fork, crash, listeners, and what the wrong order does."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import weakref

import _pulsar
import pulsar
import pytest

import pulsar_retry as pr
from support.reading import SOON, receive_all, receive_different, stats_of
from support.waiting import eventually


def run(code, broker, *arguments, expect=0):
    """Run *code* in a Python process of its own and return what it printed."""
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), broker.service_url, *arguments],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert expect == process.returncode, process.stderr
    return process.stdout


@pytest.mark.parametrize("enable_retry", [True, False])
def test_an_interrupt_is_pulsars_and_loses_nothing(subscribe, publish, enable_retry):
    """Ctrl-C in an endless receive raises Interrupted; pulsar-client would lose a message."""
    consumer = subscribe(enable_retry=enable_retry)
    main = threading.get_ident()

    def interrupt():
        """Wait until the main thread waits for a message."""
        eventually(lambda: is_within(main, "pulsar_retry/consumer/receiving.py"))
        time.sleep(0.5)
        signal.raise_signal(signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(pulsar.Interrupted):
        consumer.receive()
    interrupting.join()
    publish(b"a")

    assert [b"a"] == receive_all(consumer, count=1)


def test_an_interrupt_while_a_letter_waits_for_its_turn(subscribe, publish):
    """The message is redelivered, also if its nack was cancelled by the call."""
    consumer = subscribe(max_pending_letters=1)
    main = threading.get_ident()
    publish(b"a")
    message = consumer.receive(SOON)
    consumer.negative_acknowledge(message, delay=3600)
    permits = consumer.handle.outbox.hand_off.permits
    permits.acquire()  # as if a letter were in flight

    def interrupt():
        eventually(lambda: permits._waiting)
        signal.pthread_kill(main, signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        consumer.reconsume_later(message)
    interrupting.join()
    permits.release()
    again = consumer.receive(SOON)
    consumer.reconsume_later(again)
    assert "1" == consumer.receive(SOON).properties()["RECONSUMETIMES"]


def is_within(thread, path):
    """Tell whether a thread is in a function of a module, or in what that has called."""
    frame = sys._current_frames()[thread]
    while frame is not None and not frame.f_code.co_filename.endswith(path):
        frame = frame.f_back
    return frame is not None


@pytest.mark.parametrize("policy", [None, pr.DeadLetterPolicy(2)])
def test_an_endless_receive_is_not_asynchronous(client, topic, publish, monkeypatch, policy):
    """pulsar-client's endless receive is an asynchronous one, which can overlook a message."""
    consumer = client.subscribe(
        topic, "plain", pulsar.ConsumerType.Shared, dead_letter_policy=policy
    )
    receive, waits = _pulsar.Consumer.receive, []

    def wait(raw, *timeout):
        waits.append(timeout)
        return receive(raw, *timeout)

    monkeypatch.setattr(_pulsar.Consumer, "receive", wait)
    timer = threading.Timer(0.5, lambda: publish(b"a"))
    timer.start()
    assert b"a" == consumer.receive().data()
    assert waits
    assert all(waits)


def test_a_dropped_client_leaves_no_thread_and_no_crash(broker, topic):
    """Nobody closes anything: the process ends with 0, and our threads end before."""
    code = """
        import gc, sys, threading, time, pulsar, pulsar_retry as pr
        client = pr.Client(sys.argv[1])
        consumer = client.subscribe(sys.argv[2], "s", pulsar.ConsumerType.Shared, enable_retry=True)
        client.create_producer(sys.argv[2]).send(b"x")
        consumer.negative_acknowledge(consumer.receive(60_000), delay=3600)
        client.create_producer(sys.argv[2]).send(b"y")
        consumer.reconsume_later(consumer.receive(60_000))
        try:
            consumer.receive(100)
        except pulsar.Timeout:
            pass
        if sys.argv[3] == "drop":
            del client, consumer
            gc.collect()
            deadline = time.monotonic() + 60
            while threading.active_count() > 1 and time.monotonic() < deadline:
                time.sleep(0.01)
            print([thread.name for thread in threading.enumerate()])
    """
    assert "['MainThread']" in run(code, broker, topic, "drop")
    run(code, broker, f"{topic}-2", "keep")


def test_a_dropped_consumer_is_freed(subscribe, client):
    """After close nothing of ours holds the consumer."""
    consumer = subscribe()
    with pytest.raises(pulsar.Timeout):
        consumer.receive(10)
    consumer.close()
    reference = weakref.ref(consumer)

    gc.disable()  # so no cycle of references has kept it
    try:
        del consumer
        assert reference() is None
    finally:
        gc.enable()


def test_a_forked_child_fails_fast(subscribe, publish, client, topic):
    """Whatever is done with what was opened before: ForkedError in the child."""
    consumer = subscribe()
    table = client.create_table_view(f"{topic}-table")
    producer = client.create_producer(topic)
    publish()
    message = consumer.receive(SOON)
    attempts = [
        lambda: consumer.receive(100),
        lambda: consumer.acknowledge(message),
        lambda: consumer.negative_acknowledge(message),
        lambda: consumer.reconsume_later(message),
        lambda: consumer.seek(pulsar.MessageId.earliest),
        lambda: producer.send(b"x"),
        lambda: client.subscribe(topic, "other"),
        lambda: table.get("key"),
        table.close,
    ]

    child = os.fork()
    if child == 0:
        os._exit(sum(not _is_refused(attempt) for attempt in attempts))
    _, status = os.waitpid(child, 0)

    assert 0 == os.waitstatus_to_exitcode(status)
    consumer.acknowledge(message)  # the parent goes on
    assert [] == receive_all(consumer)


def _is_refused(attempt):
    """Tell whether *attempt* raises ForkedError."""
    try:
        attempt()
    except pr.ForkedError:
        return True
    except BaseException:
        return False
    return False


@pytest.mark.parametrize("what", ["consumer", "client"])
def test_a_callback_closes(broker, topic, caplog, what):
    """Closing does not wait for the letter whose callback it is called by, so all have receipts."""
    client = pr.Client(broker.service_url, operation_timeout_seconds=5)
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, enable_retry=True)
    producer = client.create_producer(topic)
    for number in range(20):
        producer.send(b"%d" % number)
    messages = [consumer.receive(SOON) for _ in range(20)]
    futures = [consumer.reconsume_later_async(each, delay=3600) for each in messages]
    closing = {"consumer": consumer, "client": client}[what].close
    futures[-1].add_done_callback(lambda _: closing())
    with pytest.raises(pulsar.AlreadyClosed):
        consumer.receive()
    client.shutdown()
    assert [None] * 20 == [each.exception(SOON / 1000) for each in futures]
    assert "have no receipt" not in caplog.text


@pytest.mark.parametrize("is_closed", ["closed", ""])
@pytest.mark.parametrize("kind", ["subscribe", "create_reader"])
def test_the_process_ends_while_a_listener_runs(broker, topic, kind, is_closed):
    """It ends with 0, after the listener, whether the client was closed before or not."""
    code = """
        import sys, threading, time, pulsar, pulsar_retry as pr
        began = threading.Event()

        def listen(*_):
            began.set()
            time.sleep(2)
            print("the listener has ended")

        client = pr.Client(sys.argv[1])
        if sys.argv[3] == "subscribe":
            client.subscribe(sys.argv[2], "s", enable_retry=True, message_listener=listen)
        else:
            client.create_reader(sys.argv[2], pulsar.MessageId.latest, reader_listener=listen)
        client.create_producer(sys.argv[2]).send(b"x")
        began.wait()
        if sys.argv[4]:
            client.close()
    """
    assert "the listener has ended\n" == run(code, broker, topic, kind, is_closed)


def test_a_paused_listener_gets_nothing_from_either_topic(client, publish, topic):
    """Pausing and resuming cover the retry topic."""
    seen, others = [], []
    consumer = client.subscribe(
        topic,
        "billing",
        pulsar.ConsumerType.Shared,
        message_listener=lambda _consumer, message: seen.append(message.data()),
        enable_retry=True,
    )
    consumer.pause_message_listener()
    publish(b"main")
    publish(b"letter", topic=f"{topic}-billing-RETRY")
    eventually(lambda: [1, 1] == [each["msgOutCounter"] for each in stats_of(consumer).values()])
    client.subscribe(
        topic,
        "other",
        initial_position=pulsar.InitialPosition.Earliest,
        message_listener=lambda _consumer, message: others.append(message.data()),
    )
    eventually(lambda: [b"main"] == others)
    assert [] == seen

    consumer.resume_message_listener()

    eventually(lambda: sorted(seen) == [b"letter", b"main"])


def test_seek_moves_the_topic_and_leaves_the_letters(subscribe, publish):
    """Everything of the topic comes again, the letter once; pending nacks are dropped."""
    consumer = subscribe()
    for payload in (b"a", b"b", b"c"):
        publish(payload)
    first, second, third = (consumer.receive(SOON) for _ in range(3))
    consumer.acknowledge(first)
    consumer.reconsume_later(second, delay=1)
    consumer.negative_acknowledge(third, delay=60)

    consumer.seek(pulsar.MessageId.earliest)

    assert 0 == consumer.pending_nacks
    assert [b"a", b"b", b"b", b"c"] == sorted(receive_all(consumer, count=4))


@pytest.mark.parametrize("enable_retry", [True, False])
def test_a_seek_right_after_acknowledgements_brings_their_messages(
    topic, publish, proxy, enable_retry
):
    """Also where the network stands still: no acknowledgement comes after the seek."""
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with pr.Client(proxy.url, operation_timeout_seconds=90, logger=quiet) as client:
        for number in range(6):
            part = f"{topic}-{number}"
            consumer = client.subscribe(
                part, "billing", pulsar.ConsumerType.Shared, enable_retry=enable_retry
            )
            for payload in (b"a", b"b", b"c"):
                publish(payload, topic=part)
            for _ in range(3):
                consumer.acknowledge(consumer.receive(SOON))
            proxy.stall(to_client=False)
            threading.Timer(0.5, proxy.mend).start()

            consumer.seek(pulsar.MessageId.earliest)

            came = [consumer.receive(SOON).data() for _ in range(3)]
            assert [b"a", b"b", b"c"] == came
            consumer.close()


def test_the_main_topics_surface_is_the_bare_clients(subscribe, client, publish, topic):
    """topic, names, last message id and connection are what a bare consumer of it gives."""
    consumer = subscribe(consumer_name="me")
    bare = pulsar.Client(client.get_service_info().service_url)
    twin = bare.subscribe(topic, "twin", consumer_name="me")
    publish()

    for ask in (
        lambda c: c.topic(),
        lambda c: c.consumer_name(),
        lambda c: str(c.get_last_message_id()),
        lambda c: c.is_connected(),
    ):
        assert ask(twin) == ask(consumer)
    assert "billing" == consumer.subscription_name()
    assert isinstance(consumer, pulsar.Consumer)
    assert isinstance(consumer.receive(SOON), pulsar.Message)
    bare.close()


def test_redeliver_unacknowledged_covers_both_topics(subscribe, publish):
    """What was in hand of the topic and of the retry topic comes again."""
    consumer = subscribe()
    publish(b"letter")
    consumer.reconsume_later(consumer.receive(SOON), delay=0)
    publish(b"main")
    assert {b"letter", b"main"} == {consumer.receive(SOON).data() for _ in range(2)}

    consumer.redeliver_unacknowledged_messages()

    assert [b"letter", b"main"] == sorted(receive_all(consumer, count=2))


def test_a_producer_keeps_its_client(broker, topic):
    """A function may return a producer or a table view and drop the client."""

    def make(kind):
        return getattr(pr.Client(broker.service_url, operation_timeout_seconds=90), kind)(topic)

    producer, view = make("create_producer"), make("create_table_view")
    gc.collect()

    producer.send(b"v", partition_key="k")
    eventually(lambda: view.get("k") == b"v")
    view.close()
    producer._owner.close()


def test_a_refused_unsubscribe_changes_nothing(subscribe, publish):
    """Another consumer is connected: the broker says no, and nacks and letters still work."""
    consumer, other = subscribe(), subscribe()
    other.close()
    other = subscribe(receiver_queue_size=1)
    for number in range(20):
        publish(b"%d" % number)
    nacked, reconsumed = consumer.receive(SOON), consumer.receive(SOON)
    consumer.negative_acknowledge(nacked, delay=1)

    with pytest.raises(pulsar.PulsarException):
        consumer.unsubscribe()
    consumer.reconsume_later(reconsumed, delay=0)
    other.close()

    assert {b"%d" % number for number in range(20)} == receive_different(consumer, 20)


def test_two_closers_both_wait(subscribe, client, topic):
    """A second close returns when the first is through, so that no letter loses its client."""
    consumer = subscribe()
    producer = client.create_producer(topic, block_if_queue_full=True)
    for number in range(300):
        producer.send_async(b"%d" % number, lambda *_: None)
    producer.flush()
    futures = [consumer.reconsume_later_async(consumer.receive(SOON), delay=60) for _ in range(300)]

    first = threading.Thread(target=consumer.close)
    first.start()
    consumer.close()

    assert all(future.done() for future in futures)
    assert {None} == {future.exception() for future in futures}
    first.join(20)


def test_a_nack_after_close_is_no_error(client, publish, topic):
    """Also of a last delivery: the broker redelivers it, and no thread is started."""
    consumer = client.subscribe(
        topic, "billing", pulsar.ConsumerType.Shared, dead_letter_policy=pr.DeadLetterPolicy(0)
    )
    publish()
    message = consumer.receive(SOON)
    consumer.close()

    consumer.negative_acknowledge(message)

    assert not [t for t in threading.enumerate() if "dead-letters" in t.name]


def test_early_letters_find_a_whole_consumer(client, publish, topic):
    """Letters wait when a listener starts; it can use its consumer in the very first call."""
    for number in range(20):
        publish(b"%d" % number, topic=f"{topic}-billing-RETRY", properties={"RECONSUMETIMES": "1"})
    seen, errors = [], []

    def listener(consumer, message):
        try:
            assert consumer.topic() == topic
            assert consumer.is_connected()
            consumer.acknowledge(message)
            seen.append(message.data())
        except BaseException as error:
            errors.append(error)

    client.subscribe(
        topic,
        "billing",
        pulsar.ConsumerType.Shared,
        message_listener=listener,
        enable_retry=True,
    )

    eventually(lambda: len(seen) + len(errors) >= 20)
    assert ([], 20) == (errors, len(set(seen)))


def test_a_batch_ends_in_time_while_messages_flow(subscribe, client, topic):
    """A time limit alone holds, however many messages there are."""
    policy = pulsar.ConsumerBatchReceivePolicy(-1, -1, 20)
    consumer = subscribe(batch_receive_policy=policy, receiver_queue_size=100_000)
    producer = client.create_producer(
        topic, batching_enabled=True, block_if_queue_full=True, max_pending_messages=50_000
    )
    for _ in range(100_000):
        producer.send_async(b"x", lambda *_: None)
    producer.flush()

    assert 0 < len(consumer.batch_receive()) < 100_000


def test_an_ack_timeout_starts_when_a_message_is_handed_out(client, publish, topic, admin):
    """A message that comes while nobody receives is not redelivered behind the application."""
    consumer = client.subscribe(
        topic,
        "billing",
        pulsar.ConsumerType.Shared,
        enable_retry=True,
        dead_letter_policy=pr.DeadLetterPolicy(0),
        unacked_messages_timeout_ms=10_000,
    )
    with pytest.raises(pulsar.Timeout):
        consumer.receive(50)
    publish(b"late")
    time.sleep(13)  # longer than the time-out, which is what this is about

    message = consumer.receive(SOON)
    consumer.acknowledge(message)

    assert 0 == message.redelivery_count()
    assert [] == receive_all(consumer)
    namespace = topic.removeprefix("persistent://").rsplit("/", 1)[0]
    assert f"{topic}-billing-DLQ" not in admin.topics(namespace)


def test_a_listener_is_not_called_where_subscribing_fails(client, topic):
    """Letters came before the topic was found taken; they stay for whoever gets it."""
    blocker = client.subscribe(topic, "billing", pulsar.ConsumerType.Exclusive)
    producer = client.create_producer(f"{topic}-billing-RETRY")
    for _ in range(3):
        producer.send(b"letter")
    called = []
    listening = {"enable_retry": True, "message_listener": lambda *got: called.append(got)}
    for _ in range(3):
        with pytest.raises(pulsar.ConsumerBusy):
            client.subscribe(topic, "billing", **listening)
    blocker.close()
    consumer = client.subscribe(topic, "billing", enable_retry=True)
    assert [b"letter"] * 3 == receive_all(consumer, count=3)
    assert [] == called
