"""Closing while the broker does not answer: its connections are open, but nothing comes."""

from __future__ import annotations

import threading
from contextlib import suppress

import pulsar
import pytest

import pulsar_retry as pr
from support.reading import FROM_START, SOON, SUBSCRIPTION

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)


@pytest.mark.parametrize("what", ["consumer", "client"])
def test_letters_in_flight_do_not_delay_the_end(proxy, client, topic, publish, what):
    """The client's time limit is that of all; the letter fails, and its message comes again."""
    remote = pr.Client(proxy.url, operation_timeout_seconds=10, logger=QUIET)
    consumer = remote.subscribe(
        topic, SUBSCRIPTION, **FROM_START, enable_retry=True, letter_send_timeout=3600
    )
    for payload in (b"before", b"after"):
        publish(payload)
    consumer.dead_letter(consumer.receive(SOON))
    message = consumer.receive(SOON)
    remote.create_producer(topic)
    proxy.stall()
    future = consumer.dead_letter_async(message)

    def close():
        with suppress(pulsar.Timeout):
            (consumer if what == "consumer" else remote).close()

    closer = threading.Thread(target=close)
    closer.start()
    closer.join(90)
    assert not closer.is_alive()
    assert isinstance(future.exception(60), pr.LetterPublishError)
    proxy.mend()
    with suppress(pulsar.AlreadyClosed):
        remote.close()
    consumer = client.subscribe(topic, SUBSCRIPTION, **FROM_START)
    while consumer.receive(SOON).data() != b"after":
        pass
